package badgerstore

import (
	"fmt"
	"testing"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/record"
)

// TestArchiveInParts: 64 users on one page get 400 days each, with the largest numbers. These are more bytes than the
// database takes in one transaction. A failure means that no checkpoint is written any more, and that requests wait in the end.
func TestArchiveInParts(t *testing.T) {
	dir := t.TempDir()
	s := openAlone(t, dir, quiet)
	var list []core.CounterDay
	for date := today - core.DaysKept + 1; date < today; date++ {
		most := core.Traffic{Allowed: core.MaxLimit, Denied: core.MaxLimit}
		list = append(list, core.CounterDay{Date: date, Traffic: most, Shared: most})
	}
	known(t, s, "key")
	for user := int64(pageCells); user < 2*pageCells; user++ {
		addUserAndKey(t, s, user, fmt.Sprint("key", user))
		if err := s.SetDays(t.Context(), ofUser(user), list); err != nil {
			t.Fatalf("SetDays: %v", err)
		}
	}
	for range 2 {
		writeCheckpoint(t, s)
		abandon(t, s)
		s = openAlone(t, dir, quiet)
		wantDays(t, s, ofUser(pageCells), list...)
		wantDays(t, s, ofUser(2*pageCells-1), list...)
	}
}

// TestArchivedDay: decoding an encoded day or hour of a page gives the same one. Decoding a damaged record is an error.
func TestArchivedDay(t *testing.T) {
	for _, date := range []core.Date{today, core.HourOf(noon)} {
		for _, kind := range []uint32{kindKey, kindUser} {
			var want, got archivedDay
			for n := range dayNumbersOf(kind) {
				want.fixed[0][n], want.fixed[63][n], want.fixed[17][0] = int64(n), 1<<61+int64(n), 1
			}
			if date.IsHour() {
				want.set(5, kindOn(date, core.MeterRequests, record.DayDenied), -7)
			}
			for n, used := range []int64{5, -5, 1 << 52} {
				want.set(17, kindOn(date, "tokens", record.DayAllowed+n), used)
				want.set(63, kindOn(date, "spend", record.DayAllowed+n), -used)
				want.set(21, kindOn(date, core.MeterCount, record.DayDenied), used)
				want.set(21, kindOn(date, core.MeterRequests, record.DayAdjusted), used)
			}
			want.set(21, kindOn(date, "spend", record.DayDenied), 1)
			want.set(21, kindOn(date, "spend", record.DayDenied), 0)
			encoded := want.encode(kind, date)
			if err := got.decode(encoded, kind, date); err != nil || !got.same(&want) {
				t.Errorf("decode of %v: got %+v, %v, want %+v", date, got, err, want)
			}
			if err := got.decode(encoded[:len(encoded)-1], kind, date); err == nil {
				t.Error("a record that is cut off: got no error")
			}
			if err := got.decode([]byte{pageCells, 0, 0, 0, 0}, kind, date); err == nil {
				t.Error("an invalid cell: got no error")
			}
		}
		if record := new(archivedDay).encode(kindUser, date); record != nil {
			t.Errorf("an empty day: got %x, want no record", record)
		}
	}
}
