package record_test

import (
	"encoding/binary"
	"encoding/json"
	"math"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/record"
)

// Metadata comes back byte for byte.
func TestMetadataAsItIs(t *testing.T) {
	u := &core.User{Name: "<&>\u2028\x00", Metadata: json.RawMessage(`{"a":"<&>` + "\u2028" + `","n":1.0e+2,"b":{"z":1,"a":[]}}`)}
	b, err := record.Encode(u)
	if err != nil {
		t.Fatalf("Encode: %v", err)
	}
	got, err := record.Decode[core.User](b)
	if err != nil {
		t.Fatalf("Decode: %v", err)
	}
	if d := cmp.Diff(u, got); d != "" {
		t.Errorf("user (-want +got):\n%s", d)
	}
}

// A list that is longer than its record is damaged, for any length. Decoded as a shorter list it would lose costs.
func TestRecordWithTooLongList(t *testing.T) {
	for _, n := range []uint64{1, 1 << 62, 1 << 63, math.MaxUint64} {
		c, costs := record.Decoder(binary.AppendUvarint(nil, n)), []core.MeterCost(nil)
		if c.Costs(&costs); !c.Failed() {
			t.Errorf("a list of %d costs: got %v, want a failure", n, costs)
		}
	}
}

// The last hours of the year 9999 in a zone west of UTC are in the year 10000 in UTC. A client may
// send such a time, so it must be stored.
func TestLastHours(t *testing.T) {
	end := time.Date(9999, 12, 31, 23, 0, 0, 0, time.FixedZone("", -5*3600))
	b, err := record.Encode(&core.Key{ExpiresAt: &end})
	if err != nil {
		t.Fatalf("Encode: %v", err)
	}
	got, err := record.Decode[core.Key](b)
	if err != nil || !got.ExpiresAt.Equal(end) || got.ExpiresAt.Location() != time.UTC {
		t.Errorf("expires at: got %v, %v, want %v in UTC", got.ExpiresAt, err, end)
	}
}
