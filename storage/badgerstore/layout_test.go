package badgerstore

import (
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/record"
	"github.com/limitkeeper/limitkeeper/storage/resource"
)

// noon has nanoseconds of nine digits.
var noon = time.Date(2026, time.March, 12, 12, 0, 0, 123456789, time.UTC)

var states = map[string]counterState{
	"usual": {Counter: core.Counter{
		At: noon.Unix(), Requests: core.PeriodUsage{2, 17, 300, 5000, 1, 2, 70_000}, Today: 2,
		LastUsedAt: noon,
	}, entries: 2, newest: momentOf(noon), applied: 1 << 30, chain: []int64{7, 1 << 30}},
	"behind": {entries: 1, applied: 8, chain: []int64{7}, newest: momentOf(noon)},
	"zero":   {},
	"denied": {Counter: withDenials(10_000), entries: 1, applied: 8, chain: []int64{8}, newest: momentOf(noon),
		days: []dayNumber{{20_000, record.DayDenied, 12_345}}},
	"refused":                   {Counter: core.Counter{LastRefused: noon.Unix(), DeniedOmitted: 1}},
	"denied, its days replaced": {Counter: withDenials(1), archiveStale: true},
	"used": {Counter: core.Counter{
		At: -3, Requests: core.PeriodUsage{2, math.MaxInt64, 0, 1, math.MaxInt64, 0, math.MaxInt64}, Today: math.MaxInt64,
		Meters:     &core.MeterUsage{Meter: "spend", Next: &core.MeterUsage{Meter: "tokens", Usage: core.PeriodUsage{1, 2, 3, 4, 5, 6, math.MaxInt64}}},
		LastUsedAt: noon, DeniedOmitted: 17,
	}, entries: 11, newest: momentOf(noon.AddDate(-3000, 0, 0)), late: math.MaxInt64, applied: math.MaxInt64 / 16, chain: []int64{70, 7000, math.MaxInt64 / 16},
		days: []dayNumber{{20_000, record.DayDenied, math.MaxInt64}, {20_001, record.DaySharedDenied, 1}, {20_001, record.DayDenied, 0}}},
	"days and hours of meters": {Counter: core.Counter{At: noon.Unix(), Meters: &core.MeterUsage{Meter: "tokens"}}, hour: hour, inHour: -1,
		entries: 1, newest: momentOf(noon), applied: 8, chain: []int64{8}, days: []dayNumber{
			{today, record.DayAllowed, 7}, {today - 2, record.DayAllowed | dayChange, -1},
			{hour, dayHour | record.DayAllowed, 7}, {hour - 1, dayHour | record.DaySharedDenied | dayChange, -70},
			{today, kindOfMeter("tokens", record.DaySharedAdjusted), -12}, {hour, kindOn(hour, "tokens", record.DaySharedAdjusted), -12},
			{today, kindOfMeter(core.MeterRequests, record.DayAdjusted), 3}, {hour + 1, kindOn(hour, core.MeterRequests, record.DayAdjusted), 3},
			{today, kindOfMeter("spend", record.DayDenied), 1 << 60}, {hour, kindOn(hour, "spend", record.DayDenied), math.MinInt64},
		}},
}

var hour = core.HourOf(noon)

// TestCounterRecordSize: the hour of a key takes 2 bytes of its record, and the days of its user no more when only its keys have limits. A failure means
// that a page of counters becomes larger.
func TestCounterRecordSize(t *testing.T) {
	key := counterState{Counter: core.Counter{At: noon.Unix(), LastUsedAt: noon}, entries: 1, newest: momentOf(noon), applied: 8, chain: []int64{8}}
	without := len(key.encode(nil))
	key.hour, key.inHour = hour, 9
	if got := len(key.encode(nil)) - without; got != 2 {
		t.Errorf("an hour of a key: got %d bytes, want 2", got)
	}
	user := counterState{entries: 1, newest: momentOf(noon), applied: 8, chain: []int64{8}}
	without = len(user.encode(nil))
	user.days = []dayNumber{{today, record.DayAllowed, 9}, {hour, dayHour | record.DayAllowed, 9}}
	if got := len(user.encode(nil)) - without; got != 6 {
		t.Errorf("a day and an hour of a user: got %d bytes, want 6", got)
	}
	before := len(user.encode(nil))
	user.days = append(user.days, dayNumber{today, kindOfMeter("tokens", record.DayAllowed), 9}, dayNumber{hour, kindOn(hour, "tokens", record.DayAllowed), 9})
	if got := len(user.encode(nil)) - before; got != 1+8+3+4 {
		t.Errorf("a day and an hour of a meter: got %d bytes, want %d with one name", got, 1+8+3+4)
	}
}

// withDenials returns a counter with a number of recorded denials.
func withDenials(recorded int) (c core.Counter) {
	c.AddDenied(20_000, recorded)
	c.LastRefused = 20_000 * 24 * 60 * 60
	return c
}

// TestCounterState: decoding an encoded counter gives the same state. Decoding a truncated record is an error. A failure
// means that a damaged record is read as a lower count.
func TestCounterState(t *testing.T) {
	for name, want := range states {
		b := want.encode(nil)
		got, err := decodeState(b)
		if err != nil {
			t.Fatalf("%s: decodeState: %v", name, err)
		}
		if d := cmp.Diff(want, got, cmp.AllowUnexported(counterState{}, dayNumber{}), cmpopts.IgnoreUnexported(core.Counter{})); d != "" {
			t.Errorf("%s (-want +got):\n%s", name, d)
		}
		wantDay, wantDenied := want.DeniedOn()
		if day, recorded := got.DeniedOn(); recorded != wantDenied || recorded > 0 && day != wantDay {
			t.Errorf("%s: got %d denials on %v, want %d on %v", name, recorded, day, wantDenied, wantDay)
		}
		for i := range b {
			if got, err := decodeState(b[:i]); err == nil {
				t.Errorf("%s: the first %d of %d bytes: got %+v, want an error", name, i, len(b), got)
			}
		}
	}
	if got, err := decodeState(nil); err != nil || got.applied != 0 || got.entries != 0 || !sameCounter(got.Counter, core.Counter{}) {
		t.Errorf("no record: got %+v, %v, want the zero state", got, err)
	}
}

// recordOf returns the record of an event at a position.
func recordOf(e *event, position int64) []byte {
	x := e.encode(nil)
	return x.append(nil, position)
}

// TestEventSize: the largest entry of a request takes at most core.MaxEntrySize bytes in the
// event log, without a request id. Every number in the entry has its largest value.
func TestEventSize(t *testing.T) {
	l := link{number: math.MaxInt64, prev: 1, jump: 1, late: math.MaxInt64}
	e := event{
		Entry: core.Entry{At: time.Date(9999, 12, 31, 23, 59, 59, 999_999_999, time.UTC), UserID: math.MaxInt64, Cost: 1_000_000_000, Denied: true, Reason: core.ReasonQuota,
			Limit: &core.RefusingLimit{Of: core.OfKey, Meter: strings.Repeat("x", 32), Period: core.Lifetime, Max: core.MaxLimit, Used: core.MaxLimit},
			KeyID: "key_" + strings.Repeat("x", 20), Endpoint: strings.Repeat("x", core.MaxEntryEndpoint),
			Method: strings.Repeat("x", core.MaxEntryMethod), IP: strings.Repeat("x", core.MaxEntryAddress)},
		account: math.MaxUint32, key: math.MaxInt64, shared: true, ofKey: l, ofUser: l,
	}
	const record = 7 // bytes that the event log adds to a record
	for meters := range 2 {
		for range meters {
			e.Costs = append(e.Costs, core.MeterCost{Meter: strings.Repeat("x", 32), Cost: core.MaxMeterCost})
		}
		if n, most := len(recordOf(&e, math.MaxInt64))+record, core.MaxEntrySize+(meters+1)*core.MaxMeterSize; n > most {
			t.Errorf("%d meters and a limit: got %d bytes, want %d at most", meters, n, most)
		}
	}
	e.RequestID = strings.Repeat("x", core.MaxRequestIDLength)
	if n, most := len(recordOf(&e, math.MaxInt64))+record, core.MaxEntrySize+2*core.MaxMeterSize+len(e.RequestID)+2; n > most {
		t.Errorf("a denied request with an id: got %d bytes, want %d at most", n, most)
	}
	e.RequestID = ""
	var since core.Since
	e.Denied, e.Reason, e.Limit, e.Costs, e.Endpoint, e.Method, e.since = false, "", nil, nil, "", "", &since
	e.Adjustment = &core.Adjustment{Meter: strings.Repeat("x", 32), Set: true, Period: core.Lifetime, Value: core.MaxLimit, Reason: strings.Repeat("x", 200)}
	if n := len(recordOf(&e, math.MaxInt64)) + record; n > core.MaxEntrySize {
		t.Errorf("an adjustment: got %d bytes, want %d at most", n, core.MaxEntrySize)
	}
}

// TestEvent: decoding an encoded event gives the same event. Decoding a truncated or longer record is an error. Checksums
// of the event log find changed bytes.
func TestEvent(t *testing.T) {
	const position = 1 << 40
	month, ever := core.Month.Window(noon), core.Lifetime.Window(noon)
	since := core.Anchors{{Start: noon.AddDate(0, 0, -3)}}.Since(noon)
	usual := event{
		Entry:   core.Entry{At: noon, KeyID: "key_1", UserID: math.MaxInt64, Endpoint: "/\x00\u2028", IP: "::1", Cost: core.MaxCost, RequestID: "id"},
		account: math.MaxUint32, key: math.MaxInt64, shared: true,
		ofKey:    link{number: 5, prev: position - 100, jump: 7, late: 5},
		ofUser:   link{number: math.MaxInt64, prev: position - 1},
		idToFind: "id", first: &answer{core.Terms{PlanID: "plan_1", PlanName: "Plan", Period: core.Month, Limit: math.MaxInt64},
			core.ConsumeResult{Usage: core.Usage{Window: month, Used: 3}}},
	}
	meters, anchored, limited, adjusted, refused := usual, usual, usual, usual, usual
	refused.Denied, refused.Reason, refused.idToFind, refused.first = true, core.ReasonQuota, "", nil
	refused.Limit = &core.RefusingLimit{Of: core.OfKey, Meter: core.MeterRequests, Period: core.Lifetime, Max: core.MaxLimit, Used: core.MaxLimit}
	expired, ofTokens, imported := refused, refused, usual
	expired.Reason, expired.Limit, expired.RequestID = core.ReasonConcurrency, nil, ""
	ofTokens.Limit = &core.RefusingLimit{Of: core.OfPlan, Meter: "tokens", Max: 1}
	imported.uncounted, imported.idToFind, imported.first = true, "", nil
	adjusted.since, adjusted.idToFind = &since, core.AdjustmentID+"id"
	adjusted.Adjustment = &core.Adjustment{Meter: "tokens", Set: true, Period: core.Lifetime, Value: -core.MaxLimit, Reason: "a grant"}
	meters.Costs = []core.MeterCost{{Meter: "spend", Cost: 1}, {Meter: "tokens", Cost: core.MaxMeterCost}}
	anchored.since, anchored.idToFind, anchored.first, anchored.RequestID = &since, "", nil, ""
	terms := core.Terms{Period: core.Month, OnExceed: core.AllowExceed, Limit: 9, Further: []core.Limit{{Meter: "tokens", Max: 7, Period: core.Lifetime}}, OfUser: 2,
		Own: core.OwnLimits{Limits: []core.Limit{{Meter: "spend", Max: 3, Period: core.Minute, OnExceed: core.AllowExceed}}}}
	limited.first = &answer{terms, core.ConsumeResult{Deciding: 1, Usage: core.Usage{Window: ever, Used: 5}, Limits: []core.LimitUsage{
		{Limit: terms.LimitAt(0), Of: core.OfPlan, Usage: core.Usage{Window: month, Used: 1}}, {Limit: terms.LimitAt(1), Of: core.OfUser, Usage: core.Usage{Window: ever, Used: 5}},
		{Limit: terms.LimitAt(2), Of: core.OfKey, Usage: core.Usage{Window: month, Used: 2}}}}}
	for name, want := range map[string]event{"usual": usual, "meters": meters, "anchored": anchored, "limits": limited, "expired": expired, "adjusted": adjusted,
		"refused": refused, "of tokens": ofTokens, "imported": imported} {
		b := recordOf(&want, position)
		got, err := decodeEvent(b, position)
		if err != nil {
			t.Fatalf("%s: decodeEvent: %v", name, err)
		}
		if d := cmp.Diff(want, got, cmp.AllowUnexported(event{}, link{}, answer{})); d != "" {
			t.Errorf("%s (-want +got):\n%s", name, d)
		}
		for i := 1; i < len(b); i++ {
			if got, err := decodeEvent(b[:i], position); err == nil {
				t.Errorf("%s: cut off: got %+v, want an error", name, got)
			}
		}
		if got, err := decodeEvent(append(b, 0), position); err == nil {
			t.Errorf("%s: too long: got %+v, want an error", name, got)
		}
	}
}

// TestWrites: decoding a redo record gives the writes that were encoded.
func TestWrites(t *testing.T) {
	w := newWrites()
	w.put(path("set"), []byte("value"))
	w.put(path("empty"), []byte{})
	w.put(path("deleted"), nil)
	w.dropped = []ref{{1 << 40, 7, kindKey}, {-1, 7, kindUser}}
	record := w.encode()
	got, err := decodeWrites(record)
	if err != nil {
		t.Fatalf("decodeWrites: %v", err)
	}
	if d := cmp.Diff(w, got, cmp.AllowUnexported(writes{}, ref{})); d != "" {
		t.Errorf("writes (-want +got):\n%s", d)
	}
	if _, err := decodeWrites(record[:len(record)-1]); err == nil {
		t.Error("a record that is cut off: got no error")
	}
}

// TestPaths: no two records have the same path, for any names.
func TestPaths(t *testing.T) {
	names := []string{"", "a", "b", "\x00", "\x01a", "ab", "plan", "keys", "\x00\x00\x00\x00\x00\x00\x00\x01"}
	seen := map[string]string{}
	add := func(record string, paths ...path) {
		for _, p := range paths {
			if other, ok := seen[string(p)]; ok && other != record {
				t.Errorf("%s and %s have the same path %q", record, other, p)
			}
			seen[string(p)] = record
		}
	}
	for _, a := range names {
		add("last of "+a, lastPath(a, kindKey))
		for _, b := range names {
			name := a + "/" + b
			add("set "+name, nodes(setPath(a, b))...)
			add("key "+name, keyIDPath(a, b))
			add("plan "+name, idPath(resource.Plan, a, b))
			for _, c := range names {
				add("unique "+name+"/"+c, uniquePath(a, resource.Unique{Name: b, Value: c}))
			}
		}
	}
}

// nodes returns paths of nodes of an index.
func nodes(base path) []path {
	root := append(slices.Clone(base), 0)
	mid, leaf := append(slices.Clone(base), 1), append(slices.Clone(base), 2)
	return []path{root, mid.number(0), mid.number(1), leaf.number(0), leaf.number(1)}
}
