package redisstore

import (
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
)

// The largest possible entry has at most core.MaxEntrySize bytes. A failure breaks the bound on the memory
// that one request uses.
func TestEntrySize(t *testing.T) {
	e := core.Entry{
		KeyID: "key_" + strings.Repeat("x", 20), UserID: math.MaxInt64, Cost: 1_000_000_000,
		Endpoint: strings.Repeat("x", core.MaxEntryEndpoint), Method: strings.Repeat("x", core.MaxEntryMethod),
		IP: strings.Repeat("x", core.MaxEntryAddress),
	}
	for most, l := range map[int]*core.RefusingLimit{core.MaxEntrySize: nil,
		core.MaxEntrySize + core.MaxMeterSize: {Of: core.OfKey, Meter: strings.Repeat("x", 32), Period: core.Lifetime, Max: core.MaxLimit, Used: core.MaxLimit}} {
		if e.Limit = l; l != nil {
			e.Denied, e.Reason = true, core.ReasonQuota
		}
		entry := encodeEntry(nil, markFor(&e), &e, core.DefaultRetention)
		if len(entry) > most {
			t.Errorf("limit %v: got %d bytes, want %d at most", l, len(entry), most)
		}
		t.Logf("%d bytes", len(entry))
	}
}

// Decoding an encoded entry gives the same entry, and a truncated limit is an error.
func TestEntryWithLimit(t *testing.T) {
	for _, l := range []core.RefusingLimit{{Of: core.OfPlan, Meter: core.MeterRequests, Period: core.Minute, Max: 60, Used: 60},
		{Of: core.OfUser, Meter: "tokens", Max: 1<<32 - 1}, {Of: core.OfKey, Meter: strings.Repeat("x", 32), Period: core.Lifetime, Max: core.MaxLimit, Used: 1 << 32}} {
		want := core.Entry{At: time.Unix(1_800_000_000, 5).UTC(), KeyID: "key", UserID: 7, Cost: 1, RequestID: "id \x00 1", Denied: true, Reason: core.ReasonQuota,
			Limit: &l, Costs: []core.MeterCost{{Meter: "tokens", Cost: 3}}}
		b := string(encodeEntry(nil, markFor(&want), &want, core.DefaultRetention))
		if got, err := decodeEntry(b); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("got %+v, %v, want %+v", got, err, want)
		}
		for n := range len(b) {
			if got, err := decodeEntry(b[:n]); err == nil && reflect.DeepEqual(got, want) {
				t.Errorf("the first %d bytes: got the whole entry", n)
			}
		}
	}
}
