package badgerstore

import (
	"bytes"
	"testing"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/record"
)

// TestNumberWithoutMeter: in the record of a counter, a number of a meter without a name is damage. As a number of the cost of requests, its index would be
// out of range.
func TestNumberWithoutMeter(t *testing.T) {
	s := counterState{newest: momentOf(noon)}
	s.LastUsedAt = noon
	s.SetMeter("\x7f", core.PeriodUsage{})
	s.days = []dayNumber{{date: today, number: kindOfMeter("\x7f", record.DayAdjusted), used: 1}}
	b := s.encode(nil)
	if _, err := decodeState(b); err != nil {
		t.Fatal(err)
	}
	if b = bytes.Replace(b, []byte{1, 0x7f}, []byte{0}, 1); len(b) == 0 {
		t.Fatal("no name")
	}
	if got, err := decodeState(b); err == nil {
		t.Errorf("got %+v and no error", got.days)
	}
}
