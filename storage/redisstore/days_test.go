package redisstore_test

import (
	"testing"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/redisstore"
	"github.com/limitkeeper/limitkeeper/storage/redisstore/redistest"
	"github.com/limitkeeper/limitkeeper/storage/storetest"
)

// The days of an account and of a plan are the sums over all users and keys, on every master, even after
// SCRIPT FLUSH.
func TestDaysOfManyKeys(t *testing.T) {
	t.Parallel()
	const keys = 1203 // more than two batches of a scan
	c := redistest.StartCluster(t)
	s := open(t, redisstore.Options{Addresses: c.Addrs()})
	defer s.Close()
	if err := s.CreateAccount(t.Context(), &core.Account{ID: "acct_1", Name: "many"}, &core.OwnerKey{ID: "okey_1", AccountID: "acct_1"}); err != nil {
		t.Fatal(err)
	}
	plan, made := storetest.Fill(t, s, "acct_1", keys)
	at := time.Now()
	for i := 0; i < keys; i += 3 { // the other keys stay unused
		r := counted(made[i], i)
		r.Entry.At = at
		if _, err := s.Consume(t.Context(), r); err != nil {
			t.Fatal(err)
		}
	}
	for _, n := range c.Nodes() {
		n.Do(t, "SCRIPT", "FLUSH")
	}
	today := core.DateOf(at)
	for _, of := range []core.DaysFilter{{Account: "acct_1"}, {Account: "acct_1", PlanID: plan.ID}} {
		for _, first := range []core.Date{today - 29, today} {
			days, err := s.Days(t.Context(), of, first, today)
			if err != nil || days[today-first].Allowed != keys/3 {
				t.Errorf("%d days of %+v: %+v, %v; want %d allowed", today-first+1, of, days[today-first], err, keys/3)
			}
		}
	}
}
