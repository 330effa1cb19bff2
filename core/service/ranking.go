package service

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync/atomic"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
)

// A ranking of the store lists the fullest counters of an account, see [core.Store.Rank]. Three jobs keep the ranking up to date:
//
//   - rankDecision ranks the counters of a decision that changes the share of a limit, in whole per cent.
//   - KeepRankings ranks the due counters. A change without a decision, such as a settlement or another plan of a user, makes its counter due.
//   - RankAccounts ranks all counters of an account whose ranking is incomplete, or older than MaxRankingAge.
//
// A fill in a ranking may be too high, and is too low only for a short time. [Service.Thresholds] reads the counters again.

// rankAgainAfter is the time after which a decision ranks its counters although nothing has changed: a node may have lost the earlier change.
const rankAgainAfter = 10 * time.Minute

// decisionHashes are hashes of the fills and of the address that the last decision of a key or user has recorded. A decision with the same hashes
// records nothing.
type decisionHashes struct {
	fills   atomic.Uint64 // see Service.rankDecision
	stages  atomic.Uint64 // see Service.watchLimits
	address atomic.Uint64 // see recentAddresses.record
}

// rankDecision ranks the counters of a request, and watches their limits. It skips a request that raises no fill if it has the recorded hash of fills. It does not skip a request that
// raises a fill, because the ranking may have a lower fill: after a release, or from another node.
func (s *Service) rankDecision(c *core.Consumption, v *core.ConsumeResult, recorded *decisionHashes) {
	hash, raised := c.FillHash(v)
	if hash == 0 || v.FirstTerms != nil {
		return
	}
	if hash ^= uint64(c.Entry.At.Unix() / int64(rankAgainAfter/time.Second)); recorded.fills.Swap(hash) == hash && !raised {
		return
	}
	if s.store.Rank(context.Background(), c.Account, c.Ranked(v), true) != nil {
		recorded.fills.Store(0)
	}
	s.watchLimits(c, v, &recorded.stages)
}

// addDueAfter makes the counters of an ended hold due if the final costs exceed the held costs.
func (s *Service) addDueAfter(account string, h *core.Hold) {
	if len(h.Overrun()) > 0 {
		s.addDue(account, h.UserID, h.KeyID, h.Shared)
	}
}

// addDue makes the counters of a request due: that of its key, and that of its user if the key shares it.
func (s *Service) addDue(account string, userID int64, keyID string, shared bool) {
	if shared {
		s.due.add(account, dueCounter{CounterID: core.CounterID{Account: account, UserID: userID}})
	}
	if keyID != "" {
		s.due.add(account, dueCounter{CounterID: core.CounterID{Account: account, KeyID: keyID}})
	}
}

// makeDue makes the counters due that a transaction has changed. If the transaction has changed the limits of a plan, makeDue marks the ranking as
// incomplete for all nodes.
func (s *Service) makeDue(ctx context.Context, account string, b *Transaction) {
	if s.due.add(account, b.due...); b.dueAll {
		s.due.addAll(account)
		_ = s.store.CompleteRanking(context.WithoutCancel(ctx), account, time.Time{}) // after an error, rankDue repeats the call
	}
}

// KeepRankings ranks the due counters of all accounts, and removes ended windows from the rankings. Call it every few seconds. After an error
// of one account, KeepRankings continues with the other accounts, and the next call repeats that account.
func (s *Service) KeepRankings(ctx context.Context) error {
	return s.eachAccount(ctx, func(account string) error {
		_, err := s.rankDue(ctx, account, maxDue, math.MaxInt)
		for behind := true; behind && err == nil; {
			var r core.Ranking
			r, err = s.store.Ranking(ctx, account, core.RankingQuery{From: core.RankFrom, At: s.now()}, core.Page{Number: 1})
			behind = r.Behind
		}
		return err
	})
}

// MaxRankingAge is the age of a ranking at which RankAccounts ranks all counters of its account again.
const MaxRankingAge = 24 * time.Hour

// RankAccounts ranks all counters of each account whose ranking is incomplete, older than MaxRankingAge, or older than the service or its thresholds. It also
// makes the events of all limits and expiring keys, so that a crash of a process loses none. After each page, it pauses as long as the
// page took, so that it uses half a processor at most. A million counters take minutes. Call it every few seconds, concurrently with KeepRankings. After
// an error, the next call repeats the account.
func (s *Service) RankAccounts(ctx context.Context) error {
	rest := func(took time.Duration) {
		select {
		case <-ctx.Done():
		case <-time.After(took):
		}
	}
	return s.eachAccount(ctx, func(account string) error {
		now := s.now()
		r, err := s.store.Ranking(ctx, account, core.RankingQuery{From: core.RankFrom, At: now}, core.Page{Number: 1})
		age := MaxRankingAge
		if s.eventQueue.hasMissed(account) {
			age = rankAgainAfter
		}
		if err != nil || r.WholeAt.UnixMilli() >= s.rankAfter.Load() && now.Before(r.WholeAt.Add(age)) && !s.due.hasAll(account) {
			return err
		}
		return s.rankAccount(ctx, account, rest)
	})
}

// eachAccount calls fn for each account, also after an error, and returns all errors. It skips an account during its import, because a ranking without the
// counters that are still to be imported would be marked as complete. It skips a closed account, whose ranking nothing reads.
func (s *Service) eachAccount(ctx context.Context, fn func(account string) error) error {
	var failed error
	err := s.EachAccount(ctx, func(a *core.Account) error {
		if a.Incomplete() || a.Closed() {
			return nil
		}
		if err := fn(a.ID); err != nil {
			failed = errors.Join(failed, fmt.Errorf("ranking of account %s: %w", a.ID, err))
		}
		return ctx.Err()
	})
	return errors.Join(err, failed)
}

// rankDue ranks at most limit due counters of an account, and at most maxKeys keys of due users. A due user whose keys exceed the rest of maxKeys stays due. more reports that
// other counters are due. If all counters of the account are due, rankDue marks the ranking as incomplete for RankAccounts.
func (s *Service) rankDue(ctx context.Context, account string, limit, maxKeys int) (more bool, err error) {
	due, more, all := s.due.take(account, limit)
	if all {
		return false, s.store.CompleteRanking(ctx, account, time.Time{})
	}
	ids := make([]core.CounterID, len(due))
	for i, c := range due {
		ids[i] = c.CounterID
	}
	err = s.rankExactly(ctx, account, ids)
	for _, c := range due {
		if !c.keys || err != nil {
			continue
		}
		n := 0
		if _, n, err = s.store.Keys(ctx, account, core.KeyFilter{UserID: c.UserID}, core.Page{Number: 1, Size: 1}); n > maxKeys {
			s.due.add(account, c) // KeepRankings ranks the keys
			more = true
			continue
		}
		if maxKeys -= n; err == nil {
			err = s.rankKeys(ctx, account, core.KeyFilter{UserID: c.UserID}, noRest)
		}
	}
	if err != nil {
		s.due.add(account, due...)
	}
	s.due.done(account, due)
	return more, err
}

// rankExactly replaces the fills of counters by the fills of their present usage, which may be lower. It removes deleted keys and users from the ranking.
func (s *Service) rankExactly(ctx context.Context, account string, ids []core.CounterID) error {
	for part := range slices.Chunk(ids, core.MaxImport) {
		counters, err := s.counterTermsOf(ctx, part)
		if err != nil {
			return err
		}
		usages, err := s.usagesOf(ctx, counters)
		if err != nil {
			return err
		}
		fills := map[core.CounterID][]core.Fill{}
		for i, c := range counters {
			fills[c.CounterID] = core.FillsOf(usages[i], c.user.Anchors)
		}
		list := make([]core.Ranked, len(part))
		for i, id := range part {
			list[i] = core.Ranked{CounterID: id, Fills: fills[id], Exact: true}
		}
		err = s.store.Rank(ctx, account, list, false)
		if err == nil {
			err = s.rankCounters(ctx, account, counters) // again, because Rank may have replaced a higher fill of a decision since the first reading
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// rankCounters raises the fills of counters to their present usage, and reads their limits for events.
func (s *Service) rankCounters(ctx context.Context, account string, counters []counterTerms) error {
	for part := range slices.Chunk(counters, core.MaxImport) {
		read, err := countersOf(s.counters(ctx), part, counterTerms.id)
		if err != nil {
			return err
		}
		usages := s.usagesIn(part, read)
		s.readLimits(ctx, account, part, read, usages)
		var list []core.Ranked
		for i, limits := range usages {
			if fills := core.FillsOf(limits, part[i].user.Anchors); len(fills) > 0 {
				list = append(list, core.Ranked{CounterID: part[i].CounterID, Fills: fills})
			}
		}
		if len(list) == 0 {
			continue
		}
		if err := s.store.Rank(ctx, account, list, false); err != nil {
			return err
		}
	}
	return nil
}

// correctRanking replaces the fills of all counters that are in the ranking of an account: see rankExactly.
func (s *Service) correctRanking(ctx context.Context, account string, rest func(time.Duration)) error {
	q := core.RankingQuery{From: core.RankFrom, At: s.now()}
	page := func(p core.Page) ([]core.Ranked, int, error) {
		r, err := s.store.Ranking(ctx, account, q, p)
		return r.Counters, r.Total, err
	}
	return eachPageFromLast(ctx, rest, page, func(list []core.Ranked) error { return s.rankExactly(ctx, account, core.RankedIDs(list)) })
}

// eachPageFromLast calls fn with the pages of a list, the last page first. An item that leaves the list moves later items to earlier pages, which are still
// to be read, so no item is left out. eachPageFromLast calls rest after each page with the duration of reading and fn.
func eachPageFromLast[T any](ctx context.Context, rest func(time.Duration), list func(core.Page) ([]T, int, error), fn func([]T) error) error {
	_, total, err := list(core.Page{Number: 1, Size: 1})
	for n := (total + core.ReadSize - 1) / core.ReadSize; n > 0 && err == nil; n-- {
		start := time.Now()
		var items []T
		if items, _, err = list(core.Page{Number: n, Size: core.ReadSize}); err == nil {
			err = fn(items)
		}
		rest(time.Since(start))
		err = cmp.Or(err, ctx.Err())
	}
	return err
}

// rankAccount ranks all counters of an account, a page of users or keys at a time. It calls rest after each page with the time that the page took.
func (s *Service) rankAccount(ctx context.Context, account string, rest func(time.Duration)) (err error) {
	s.due.forget(account) // a change from now on makes its counters due again
	s.eventQueue.forgetMissed(account)
	defer func() {
		if err != nil {
			s.due.addAll(account)
		}
	}()
	began := s.now()
	if err := s.correctRanking(ctx, account, rest); err != nil { // first, because counters with too high fills would push others out of the ranking
		return err
	}
	users := func(p core.Page) ([]*core.User, int, error) { return s.store.Users(ctx, account, core.UserFilter{}, p) }
	err = eachPageFromLast(ctx, rest, users, func(list []*core.User) error {
		var counters []counterTerms
		for _, u := range list {
			if u.PlanID == "" {
				continue
			}
			c, err := s.newCounterTerms(ctx, account, u, nil)
			if err != nil {
				return err
			}
			counters = append(counters, c)
		}
		return s.rankCounters(ctx, account, counters)
	})
	if err == nil {
		err = s.rankKeys(ctx, account, core.KeyFilter{}, rest)
	}
	if err != nil {
		return err
	}
	return s.store.CompleteRanking(ctx, account, began)
}

// noRest is a rest without a pause, for calls that a client waits for.
func noRest(time.Duration) {}

// rankKeys ranks the counters of the keys that match a filter, a page at a time.
func (s *Service) rankKeys(ctx context.Context, account string, f core.KeyFilter, rest func(time.Duration)) error {
	keys := func(p core.Page) ([]*core.Key, int, error) { return s.store.Keys(ctx, account, f, p) }
	return eachPageFromLast(ctx, rest, keys, func(list []*core.Key) error {
		s.noteExpiring(ctx, account, list)
		list = slices.DeleteFunc(list, func(k *core.Key) bool { return k.PlanID == "" && len(k.Own().Limits) == 0 })
		all := make([]counterTerms, len(list))
		err := s.eachAtOnce(ctx, len(list), func(ctx context.Context, i int) error {
			u, err := s.store.User(ctx, account, list[i].UserID)
			if errors.Is(err, core.ErrUserNotFound) { // deleted just now
				return nil
			}
			if err == nil {
				all[i], err = s.newCounterTerms(ctx, account, u, list[i])
			}
			return err
		})
		if err != nil {
			return err
		}
		return s.rankCounters(ctx, account, slices.DeleteFunc(all, func(c counterTerms) bool { return c.user == nil }))
	})
}
