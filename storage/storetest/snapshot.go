package storetest

import (
	"encoding/json"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
)

// snapshot is the whole content of an account.
type snapshot struct {
	Owners    []*core.OwnerKey
	Users     []*core.User
	Plans     []*core.Plan
	Keys      []*core.Key
	ByDigest  []*core.Key
	Counters  []core.Counter
	Histories [][]core.Entry
	Days      [][]core.DayTotals // of the counters around noon
}

// snapshot reads the whole content of an account.
func (e *env) snapshot(account string) snapshot {
	e.Helper()
	s := snapshot{
		Owners: all(e, e.ownerKeys(account)), Users: all(e, e.users(account, core.UserFilter{})),
		Plans: all(e, e.plans(account)), Keys: all(e, e.keys(account, core.KeyFilter{})),
	}
	var ids []core.CounterID
	for _, u := range s.Users {
		ids = append(ids, core.CounterID{Account: account, UserID: u.ID})
	}
	for _, k := range s.Keys {
		ids = append(ids, core.CounterID{Account: account, KeyID: k.ID})
		for _, d := range k.Digests() {
			found, err := e.Store.KeyByDigest(e.ctx, d)
			e.ok("KeyByDigest", err)
			s.ByDigest = append(s.ByDigest, found)
		}
	}
	var err error
	s.Counters, err = e.Store.Counters(e.ctx, ids)
	e.ok("Counters", err)
	for _, id := range ids {
		s.Histories = append(s.Histories, all(e, e.entries(id, time.Time{})))
		days, err := e.Store.Days(e.ctx, core.DaysFilter{Account: account, KeyID: id.KeyID, UserID: id.UserID}, today-1, today+3)
		e.ok("Days", err)
		s.Days = append(s.Days, days)
	}
	return s
}

// copied returns a deep copy.
func (e *env) copied(s snapshot) (c snapshot) {
	e.Helper()
	text, err := json.Marshal(s)
	e.ok("copy", err)
	e.ok("copy", json.Unmarshal(text, &c))
	return c
}
