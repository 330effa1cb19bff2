package storetest

import (
	"context"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
)

var brokenHolds = []defect{
	{name: "settles a hold twice", caughtBy: "machine", open: flawedHolds(holdFlaw{again: true})},
	{name: "settles a hold twice at once", caughtBy: "hold/at once", open: flawedHolds(holdFlaw{again: true})},
	{name: "answers a repeated settlement with its own costs", caughtBy: "machine",
		open: flawedHolds(holdFlaw{answer: func(h *core.Hold, c *core.Consumption) { h.Settled, h.SettledCosts = c.Cost, c.Costs }})},
	{name: "settles into the present windows", caughtBy: "hold/last month",
		open: flawedHolds(holdFlaw{settle: func(c *core.Consumption) { c.Settlement.HeldAt = c.Entry.At }})},
	{name: "settles on the day of the settlement", caughtBy: "machine",
		open: flawedHolds(holdFlaw{settle: func(c *core.Consumption) { c.Settlement.HeldAt = c.Settlement.HeldAt.Add(time.Hour) }})},
	{name: "adds the final costs to the held ones", caughtBy: "machine",
		open: flawedHolds(holdFlaw{settle: func(c *core.Consumption) { c.Settlement.Cost, c.Settlement.Costs = 0, nil }})},
	{name: "settles requests only", caughtBy: "machine",
		open: flawedHolds(holdFlaw{settle: func(c *core.Consumption) { c.Costs = c.Settlement.Costs }})},
	{name: "counts a final cost up to the held one", caughtBy: "hold/last month",
		open: flawedHolds(holdFlaw{settle: func(c *core.Consumption) {
			for i, m := range c.Costs {
				c.Costs[i].Cost = min(m.Cost, 100)
			}
		}})},
	{name: "keeps what a released hold has counted", caughtBy: "machine",
		open: flawedHolds(holdFlaw{settle: func(c *core.Consumption) {
			if c.Settlement.Status == core.HoldReleased {
				c.Cost, c.Costs = c.Settlement.Cost, c.Settlement.Costs
			}
		}})},
	{name: "gives back what a hold keeps when it expires", caughtBy: "machine",
		open: altered(func(c *core.Consumption) { setExpiry(c, core.ReleaseHeld) })},
	{name: "keeps what a hold gives back when it expires", caughtBy: "hold/expired",
		open: altered(func(c *core.Consumption) { setExpiry(c, core.KeepHeld) })},
	{name: "never ends a hold by itself", caughtBy: "hold/expired", open: flawedHolds(holdFlaw{neverExpires: true})},
	{name: "ends a hold a millisecond too early", caughtBy: "machine",
		open: altered(func(c *core.Consumption) {
			if c.Hold != nil {
				h := *c.Hold
				h.ExpiresAt = h.ExpiresAt.Add(-time.Millisecond)
				c.Hold = &h
			}
		})},
	{name: "ignores the concurrency of a plan", caughtBy: "hold/concurrency", open: altered(func(c *core.Consumption) { c.Concurrency = 0 })},
	{name: "ignores the concurrency of a key", caughtBy: "hold/concurrency", open: altered(func(c *core.Consumption) { c.Own.Concurrency = 0 })},
	{name: "lets one more hold be open", caughtBy: "hold/concurrency",
		open: altered(func(c *core.Consumption) {
			if c.Concurrency > 0 {
				c.Concurrency++
			}
		})},
	{name: "refuses requests without a hold for the concurrency", caughtBy: "hold/concurrency", open: flawedHolds(holdFlaw{holdsAll: true})},
	{name: "extends no hold", caughtBy: "hold/extended", open: flawedHolds(holdFlaw{extend: func(error) error { return nil }, extendsNone: true})},
	{name: "says that an ended hold was extended", caughtBy: "hold/extended", open: flawedHolds(holdFlaw{extend: func(error) error { return nil }})},
	{name: "answers a repeated request without its hold", caughtBy: "machine", open: flawedHolds(holdFlaw{forgetsID: true})},
	{name: "forgets the open holds when it is closed", caughtBy: "hold/reopened", open: flawedHolds(holdFlaw{endsOnClose: true})},
	{name: "skips the oldest hold", caughtBy: "hold/oldest", open: flawedHolds(holdFlaw{oldest: func(at time.Time) time.Time { return at.Add(time.Minute) }})},
	{name: "lists holds that have ended", caughtBy: "hold/oldest", open: flawedHolds(holdFlaw{oldest: func(time.Time) time.Time { return noon }})},
	{name: "lists the holds of another account", caughtBy: "hold/oldest", open: flawedHolds(holdFlaw{ofOther: true})},
	{name: "finds the holds of other accounts", caughtBy: "hold/other account", open: flawedHolds(holdFlaw{anyAccount: true})},
}

// setExpiry changes what happens to the hold of a request when it expires.
func setExpiry(c *core.Consumption, x core.OnExpiry) {
	if c.Hold != nil {
		h := *c.Hold
		h.OnExpiry = x
		c.Hold = &h
	}
}

// holdFlaw describes the defects of a store with holds. The zero value has none.
type holdFlaw struct {
	again        bool // a repeated settlement counts, too
	settle       func(*core.Consumption)
	answer       func(*core.Hold, *core.Consumption) // of a repeated settlement
	neverExpires bool
	holdsAll     bool // every request takes a hold
	extend       func(error) error
	extendsNone  bool
	forgetsID    bool
	endsOnClose  bool
	anyAccount   bool
	oldest       func(time.Time) time.Time // what OldestHolds returns in place of a time
	ofOther      bool                      // OldestHolds adds a hold
}

func flawedHolds(f holdFlaw) func() Opened {
	accounts := map[string]string{} // of holds
	return wrapped(func(s core.Store) core.Store { return &flawedHoldStore{Store: s, holdFlaw: f, accounts: accounts} })
}

type flawedHoldStore struct {
	core.Store
	holdFlaw
	accounts map[string]string
}

func (s *flawedHoldStore) Consume(ctx context.Context, c *core.Consumption) (core.ConsumeResult, error) {
	given := *c
	if s.holdsAll && c.Hold == nil && c.Adjustment == nil {
		given.Hold = &core.NewHold{ID: core.NewHoldID(c.UserID), ExpiresAt: c.Entry.At.Add(time.Hour)}
		given.Concurrency = max(1, c.Concurrency)
	}
	v, err := s.Store.Consume(ctx, &given)
	if s.anyAccount && c.Hold != nil {
		s.accounts[c.Hold.ID] = c.Account
	}
	if s.forgetsID && v.FirstTerms != nil {
		v.HoldID = ""
	}
	return v, err
}

func (s *flawedHoldStore) Settle(ctx context.Context, c *core.Consumption) (*core.Hold, bool, error) {
	given := copyOf(*c)
	if s.settle != nil {
		s.settle(&given)
	}
	h, repeated, err := s.Store.Settle(ctx, &given)
	if err == nil && repeated && s.again {
		twice := adjusted(given, "tokens", 1)
		twice.Settlement = nil
		_, err = s.Store.Consume(ctx, &twice)
	}
	if err == nil && repeated && s.answer != nil {
		s.answer(h, c)
	}
	return h, repeated, err
}

func (s *flawedHoldStore) Hold(ctx context.Context, account, id string) (*core.Hold, error) {
	if s.anyAccount && s.accounts[id] != "" {
		account = s.accounts[id]
	}
	return s.Store.Hold(ctx, account, id)
}

func (s *flawedHoldStore) ExtendHold(ctx context.Context, account, id string, at, until time.Time) error {
	var err error
	if !s.extendsNone {
		err = s.Store.ExtendHold(ctx, account, id, at, until)
	}
	if s.extend != nil {
		err = s.extend(err)
	}
	return err
}

func (s *flawedHoldStore) OldestHolds(ctx context.Context, account string) (map[int64]time.Time, error) {
	oldest, err := s.Store.OldestHolds(ctx, account)
	for user, at := range oldest {
		if s.oldest != nil {
			oldest[user] = s.oldest(at)
		}
	}
	if s.ofOther && err == nil {
		oldest[1_000] = noon
	}
	return oldest, err
}

func (s *flawedHoldStore) ExpireHolds(ctx context.Context, account string, at time.Time, retention time.Duration) error {
	if s.neverExpires {
		return nil
	}
	return s.Store.ExpireHolds(ctx, account, at, retention)
}

func (s *flawedHoldStore) Close() error {
	if s.endsOnClose {
		ctx := context.Background()
		accounts, _, _ := s.Accounts(ctx, core.Page{Number: 1, Size: 1000})
		for _, a := range accounts {
			_ = s.Store.ExpireHolds(ctx, a.ID, noon.AddDate(1, 0, 0), forever)
		}
	}
	return s.Store.Close()
}
