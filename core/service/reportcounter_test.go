package service_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/service"
	"github.com/limitkeeper/limitkeeper/storage/memstore"
)

// A report has a row for each key of users with few and with many keys, in the order of users and keys, and a row for what no key has used. By plans it has the same sums.
func TestReportOfKeys(t *testing.T) {
	store := memstore.New()
	c := newThresholds(t, store)
	pl, own := c.plan(1_000_000), c.plan(1_000_000)
	day := core.DateOf(*c.now)
	var want []string
	var ofShared, ofOwn int64
	row := func(user int, key string, n int64) {
		if n != 0 {
			want = append(want, fmt.Sprintf("user %d %s %d", user, key, n))
		}
	}
	setDays := func(id core.CounterID, n int64) {
		id.Account = c.id
		c.ok(store.SetDays(t.Context(), id, []core.CounterDay{{Date: day, Traffic: core.Traffic{Allowed: n}}}))
	}
	for i, keys := range []int{0, 1, 250, 100, 0, 101, 3} {
		u, err := c.svc.CreateUser(t.Context(), c.id, core.UserPatch{Name: new(fmt.Sprint("user ", i)), PlanID: core.Some(pl.ID)})
		c.ok(err)
		var sum int64
		for j := range keys {
			p := core.KeyPatch{Name: new(fmt.Sprint("key ", j)), UserID: &u.ID}
			if j%3 == 0 {
				p.PlanID = core.Some(own.ID)
			}
			k, _, err := c.svc.CreateKey(t.Context(), c.id, p)
			c.ok(err)
			n := int64(i*1000 + j)
			setDays(core.CounterID{KeyID: k.ID}, n)
			row(i, k.Name, n)
			if sum += n; j%3 == 0 {
				ofOwn += n
			}
		}
		setDays(core.CounterID{UserID: u.ID}, sum+int64(i)) // a deleted key has used the rest
		row(i, "-", int64(i))
		ofShared += sum + int64(i)
	}
	var got []string
	add := func(rows []service.ReportRow) error {
		for _, r := range rows {
			key, user := "-", "all"
			if r.Key != nil {
				key = r.Key.Name
			}
			if r.User != nil {
				user = r.User.Name
			}
			if r.Plan != nil {
				key = r.Plan.ID
			}
			got = append(got, fmt.Sprintf("%s %s %d", user, key, r.Used()))
		}
		return nil
	}
	q := service.ReportQuery{First: day, Last: day}
	q.Key = true
	c.ok(c.svc.StreamReport(t.Context(), c.id, q, add))
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("by key: got %d rows, want %d:\n%s", len(got), len(want), strings.Join(got[:min(20, len(got))], "\n"))
	}
	got, q.Key, q.Plan = nil, false, true
	c.ok(c.svc.StreamReport(t.Context(), c.id, q, add))
	if want := fmt.Sprintf("[all %s %d all %s %d]", pl.ID, ofShared-ofOwn, own.ID, ofOwn); fmt.Sprint(got) != want {
		t.Errorf("by plan: got %v, want %s", got, want)
	}
}
