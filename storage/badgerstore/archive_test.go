package badgerstore

import (
	"fmt"
	"slices"
	"testing"

	"github.com/dgraph-io/badger/v4"

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
				number := hourMark(date) | dayKind(n)
				want.set(0, number, int64(n))
				want.set(63, number, 1<<61+int64(n))
				want.set(17, number, 1)
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
			if err := got.decode(encoded, kind, date); err != nil || !slices.Equal(got, want) {
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

// TestArchivedOrder: a record has its meters in the order of their names, in whatever order the process has met the names. An earlier build finds a number by
// this order: it would lose and repeat numbers after a downgrade.
func TestArchivedOrder(t *testing.T) {
	var a archivedDay
	for _, name := range []string{"order-z", "order-m", "order-a"} {
		a.set(2, kindOn(today, name, record.DayAllowed), 1)
	}
	a.set(2, record.DayDenied, 1)
	want := "\xff\x03\x07order-a\x07order-m\x07order-z" + "\x82\x00\x01\x03" + "\x00\x00\x02" + "\x01\x00\x02" + "\x02\x00\x02"
	if got := string(a.encode(kindKey, today)); got != want {
		t.Errorf("record: got %q, want %q", got, want)
	}
}

// TestArchivedWithoutName: a number of a meter without a name is damage. As a number of the cost of requests, its index would be out of range.
func TestArchivedWithoutName(t *testing.T) {
	damaged := []byte{archiveNames, 1, 0, 2 | cellMeters, 0, 0, 1, 0, record.DayAdjusted, 2}
	if a := new(archivedDay); a.decode(damaged, kindKey, today) == nil {
		t.Errorf("got %+v and no error", *a)
	}
}

// TestArchivedChanges: changes of more days than one transaction should have are all written in the last one. A failure means that settlements of
// earlier days are lost.
func TestArchivedChanges(t *testing.T) {
	s := openAlone(t, t.TempDir(), quiet)
	known(t, s, "key")
	a := archiveUpdate{page: userRef(t, s, 1).page()}
	for date := today - core.DaysKept; date < today; date++ {
		for cell := range byte(pageCells) {
			for _, number := range []dayKind{record.DayDenied, record.DaySharedDenied} {
				a.put = append(a.put, cellDay{cell, dayNumber{date, number | dayChange, core.MaxLimit - int64(cell)}})
			}
		}
	}
	err := s.commitTxn(func(txn *badger.Txn) error {
		_, done, err := a.write(txn)
		if !done {
			t.Error("got days that are left, want all at once")
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	days := 0
	err = s.inView(func(r view) error {
		return r.eachArchived(a.page, today-core.DaysKept, today, func(_ core.Date, day *archivedDay) {
			if days++; day.number(7, record.DaySharedDenied) != core.MaxLimit-7 {
				t.Errorf("got %d", day.number(7, record.DaySharedDenied))
			}
		})
	})
	if err != nil || days != core.DaysKept {
		t.Errorf("got %d days, %v, want %d", days, err, core.DaysKept)
	}
}
