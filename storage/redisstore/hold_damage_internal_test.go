package redisstore

import (
	"errors"
	"testing"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/record"
)

// A first answer whose terms are damaged is an error. Its limits have no windows.
func TestDamagedFirstAnswer(t *testing.T) {
	b := encodeTerms(&core.Consumption{Terms: core.Terms{Period: core.Month, Limit: 1}})
	b[0] = 100
	if v, err := decodeRepeated(record.NewReader(append(b, make([]byte, 20)...))); !errors.Is(err, record.ErrDamaged) {
		t.Errorf("got %+v, %v, want %v", v, err, record.ErrDamaged)
	}
}
