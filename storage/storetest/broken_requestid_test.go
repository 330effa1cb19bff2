package storetest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/memstore"
)

var brokenRequestIDs = []defect{
	{name: "counts every repeat", caughtBy: "machine",
		open: altered(func(c *core.Consumption) { c.RequestID = "" })},
	{name: "records repeats in the history", caughtBy: "machine",
		open: rememberingIDs(ids{repeated: func(s core.Store, c *core.Consumption) {
			denied := limit(cost(*c, 1), core.Month, 0)
			_, _ = s.Consume(context.Background(), &denied)
		}})},
	{name: "counts a repeat of another cost", caughtBy: "machine",
		open: altered(func(c *core.Consumption) { c.RequestID = nameUnlessEmpty(c.RequestID, "%s %d", c.RequestID, c.Cost) })},
	{name: "answers a repeat with the current usage", caughtBy: "machine",
		open: rememberingIDs(ids{answer: func(first answered, now core.ConsumeResult, _ *core.Consumption) core.ConsumeResult {
			return core.ConsumeResult{Usage: now.Usage, Allowed: true, FirstTerms: first.FirstTerms}
		}})},
	{name: "answers a repeat with the current terms", caughtBy: "machine",
		open: rememberingIDs(ids{answer: func(first answered, _ core.ConsumeResult, c *core.Consumption) core.ConsumeResult {
			return core.ConsumeResult{Usage: first.Usage, Allowed: true, FirstTerms: &c.Terms}
		}})},
	{name: "answers a repeat with the current window", caughtBy: "machine",
		open: rememberingIDs(ids{answer: func(first answered, _ core.ConsumeResult, c *core.Consumption) core.ConsumeResult {
			window := first.FirstTerms.Period.Window(c.Entry.At)
			return core.ConsumeResult{Usage: core.Usage{Window: window, Used: first.Usage.Used}, Allowed: true, FirstTerms: first.FirstTerms}
		}})},
	{name: "does not mark a repeat", caughtBy: "machine",
		open: rememberingIDs(ids{answer: func(first answered, _ core.ConsumeResult, _ *core.Consumption) core.ConsumeResult {
			return core.ConsumeResult{Usage: first.Usage, Allowed: true}
		}})},
	{name: "denies a repeat when the quota is used up", caughtBy: "machine",
		open: rememberingIDs(ids{answer: func(first answered, now core.ConsumeResult, _ *core.Consumption) core.ConsumeResult {
			first.Allowed = now.Allowed
			return first.ConsumeResult
		}})},
	{name: "remembers the key's usage where the user's counter decides", caughtBy: "machine",
		open: rememberingIDs(ids{keep: func(s core.Store, c *core.Consumption, a *answered) bool {
			cs, _ := s.Counters(context.Background(), []core.CounterID{{Account: c.Account, KeyID: c.KeyID}})
			a.Usage = cs[0].Usage(core.MeterRequests, c.Period, nil, c.Entry.At)
			return true
		}})},
	{name: "forgets an id before 24 hours have passed", caughtBy: "machine",
		open: rememberingIDs(ids{lasts: 23 * time.Hour})},
	{name: "remembers an id a moment too long", caughtBy: "machine",
		open: rememberingIDs(ids{lasts: core.RequestIDRetention + 1})},
	{name: "remembers an id for ever", caughtBy: "machine",
		open: rememberingIDs(ids{lasts: forever})},
	{name: "remembers an id for 24 hours from its last repeat", caughtBy: "machine",
		open: rememberingIDs(ids{answer: func(first answered, _ core.ConsumeResult, c *core.Consumption) core.ConsumeResult {
			*first.at = c.Entry.At
			return first.ConsumeResult
		}})},
	{name: "forgets an id when the clock steps back", caughtBy: "machine",
		open: rememberingIDs(ids{repeats: func(c *core.Consumption, at time.Time) bool { return c.Repeats(at) && !c.Entry.At.Before(at) }})},
	{name: "shares ids between keys", caughtBy: "machine",
		open: rememberingIDs(ids{name: func(c *core.Consumption) string { return c.Account + " " + c.RequestID }})},
	{name: "shares ids between accounts", caughtBy: "machine",
		open: rememberingIDs(ids{name: func(c *core.Consumption) string { return fmt.Sprint(c.KeySeq, " ", c.RequestID) }})},
	{name: "ignores the case of an id", caughtBy: "machine",
		open: altered(func(c *core.Consumption) { c.RequestID = strings.ToLower(c.RequestID) })},
	{name: "cuts an id", caughtBy: "machine",
		open: altered(func(c *core.Consumption) {
			c.RequestID = c.RequestID[:min(len(c.RequestID), core.MaxRequestIDLength-1)]
		})},
	{name: "ends an id at the first zero", caughtBy: "machine",
		open: altered(func(c *core.Consumption) { c.RequestID, _, _ = strings.Cut(c.RequestID, "\x00") })},
	{name: "keeps ids as valid text", caughtBy: "machine",
		open: altered(func(c *core.Consumption) { c.RequestID = strings.ToValidUTF8(c.RequestID, "\uFFFD") })},
	{name: "remembers requests without an id", caughtBy: "machine",
		open: altered(func(c *core.Consumption) { c.RequestID = cmp.Or(c.RequestID, "none") })},
	{name: "remembers denied requests", caughtBy: "machine",
		open: rememberingIDs(ids{keep: func(core.Store, *core.Consumption, *answered) bool { return true }})},
	{name: "remembers requests of cost 0", caughtBy: "machine",
		open: rememberingIDs(ids{keep: func(_ core.Store, _ *core.Consumption, a *answered) bool { return a.Allowed }})},
	{name: "forgets the ids of a key that changes its user", caughtBy: "machine",
		open: altered(func(c *core.Consumption) {
			c.RequestID = nameUnlessEmpty(c.RequestID, "%s of %d", c.RequestID, c.UserID)
		})},
	{name: "answers a repeat with a deleted key", caughtBy: "machine",
		open: rememberingIDs(ids{blind: true})},
	{name: "keeps the ids of a deleted key", caughtBy: "machine",
		open: rememberingIDs(ids{name: func(c *core.Consumption) string { return c.Account + " " + c.KeyID + " " + c.RequestID }})},
	{name: "keeps ids in memory only", caughtBy: "machine",
		open: rememberingIDs(ids{reopened: func(s *remembersIDs) { clear(s.known) }})},
	{name: "counts 24 hours from opening", caughtBy: "machine",
		open: rememberingIDs(ids{reopened: func(s *remembersIDs) {
			for _, a := range s.known {
				*a.at = a.at.Add(time.Hour)
			}
		}})},
	{name: "remembers at most 3000 ids", caughtBy: "request id/many", open: rememberingIDs(ids{room: 3000})},
	{name: "hands out its own terms", caughtBy: "machine", open: rememberingIDs(ids{shared: true})},
	{name: "checks, counts and remembers an id in three steps", caughtBy: "request id/at once", open: rememberingIDs(ids{late: true})},
	{name: "checks, counts and remembers an id in three steps, with a quota", caughtBy: "request id/at once with a quota",
		open: rememberingIDs(ids{late: true})},
	{name: "answers a repeat before the first is answered", caughtBy: "request id/with other ids",
		open: wrapped(func(s core.Store) core.Store {
			return &guessesRepeats{Store: s, begun: map[string]bool{}, guessed: map[string]int{}}
		})},
	{name: "answers a repeat of an uncounted request", caughtBy: "request id/during close", open: rememberingIDs(ids{keepsFailed: true})},
	{name: "loses the last ids when it is closed", caughtBy: "request id/during close",
		open: rememberingIDs(ids{reopened: func(s *remembersIDs) {
			if last := len(s.order) - 1; last >= 0 {
				delete(s.known, s.order[last])
			}
		}})},
}

// nameUnlessEmpty applies a naming defect to ids that are not empty.
func nameUnlessEmpty(id, format string, args ...any) string {
	if id == "" {
		return ""
	}
	return fmt.Sprintf(format, args...)
}

// ids describes the defects of a store that remembers ids. The zero value has no defect.
type ids struct {
	name        func(*core.Consumption) string
	lasts       time.Duration
	repeats     func(c *core.Consumption, at time.Time) bool
	keep        func(core.Store, *core.Consumption, *answered) bool
	answer      func(first answered, now core.ConsumeResult, c *core.Consumption) core.ConsumeResult
	repeated    func(core.Store, *core.Consumption)
	reopened    func(*remembersIDs)
	room        int  // largest number of ids; 0: no bound
	late        bool // remembers in a separate step
	blind       bool // does not check that the key exists
	keepsFailed bool // remembers before the count
	shared      bool // returns its own terms
}

// remembersIDs is a store that remembers ids. It gives each request a new id in the inner store, so that the inner store
// sees no repeat. Its histories have the ids of the callers.
type remembersIDs struct {
	core.Store
	ids

	*sync.Mutex
	known  map[string]answered
	order  []string       // keys of known, oldest first
	looked map[string]int // misses of an id
	passed *int           // number of requests with an id in the inner store
}

// idSuffix separates the id of the caller from the number that makes the id new in the inner store.
const idSuffix = " in the inner store "

// newID returns a request with the same id of the caller, which is new in the inner store.
func (s *remembersIDs) newID(c core.Consumption) *core.Consumption {
	*s.passed++
	c.RequestID = fmt.Sprint(c.RequestID, idSuffix, *s.passed)
	return &c
}

func (s *remembersIDs) History(ctx context.Context, of core.CounterID, since time.Time, p core.Page) ([]core.Entry, int, error) {
	es, n, err := s.Store.History(ctx, of, since, p)
	for i := range es {
		es[i].RequestID, _, _ = strings.Cut(es[i].RequestID, idSuffix)
	}
	return es, n, err
}

type answered struct {
	core.ConsumeResult
	at *time.Time // of the request
}

// rememberingIDs opens stores that remember ids with the given defects.
func rememberingIDs(flaw ids) func() Opened {
	return func() Opened {
		inner := memstore.New()
		s := &remembersIDs{Store: inner, ids: flaw, Mutex: &sync.Mutex{}, known: map[string]answered{}, looked: map[string]int{}, passed: new(int)}
		return Opened{Store: s, Reopen: func(testing.TB) core.Store {
			inner = inner.Reopen()
			s = &remembersIDs{Store: inner, ids: flaw, Mutex: &sync.Mutex{}, known: maps.Clone(s.known), order: slices.Clone(s.order), looked: map[string]int{},
				passed: s.passed}
			if s.reopened != nil {
				s.reopened(s)
			}
			return s
		}}
	}
}

func (s *remembersIDs) Consume(ctx context.Context, c *core.Consumption) (core.ConsumeResult, error) {
	if c.RequestID == "" || c.Refused != "" || c.Adjustment != nil {
		return s.Store.Consume(ctx, c)
	}
	s.Lock()
	defer s.Unlock()
	now, err := s.look(ctx, c)
	if err != nil && !s.blind && !s.keepsFailed {
		return now, err
	}
	name := s.nameOf(c)
	if first, ok := s.known[name]; ok && s.same(c, *first.at) {
		return s.again(c, first, now), nil
	}
	if s.late {
		s.awaitTwin(name)
	}
	a := answered{at: new(c.Entry.At), ConsumeResult: core.ConsumeResult{Allowed: true, FirstTerms: c.Terms.WithoutRates()}}
	if s.keepsFailed {
		s.known[name] = a
	}
	v, err := s.Store.Consume(ctx, s.newID(*c))
	a.Usage, a.Allowed, a.Deciding, a.HoldID, a.Limits = v.Usage, v.Allowed, v.Deciding, v.HoldID, slices.Clone(v.Limits)
	if err == nil && s.keeps(c, &a) {
		s.remember(name, a)
	} else if err == nil {
		delete(s.known, name)
	}
	return v, err
}

// look returns the present answer if an answer to a repeat needs it. Otherwise it only checks that the key and the user exist: even a look at an
// early time would end holds that have expired, and a repeat ends none.
func (s *remembersIDs) look(ctx context.Context, c *core.Consumption) (now core.ConsumeResult, err error) {
	if s.answer != nil {
		look := cost(withRequestID(*c, ""), 0)
		return s.Store.Consume(ctx, &look)
	}
	if c.KeyID != "" {
		_, err = s.Key(ctx, c.Account, c.KeyID)
	}
	if err == nil {
		_, err = s.User(ctx, c.Account, c.UserID)
	}
	return now, err
}

// awaitTwin releases the lock until another request has missed the same id, or until a time has
// passed.
func (s *remembersIDs) awaitTwin(name string) {
	s.looked[name]++
	s.Unlock()
	within(overlap, func() bool {
		s.Lock()
		defer s.Unlock()
		return s.looked[name] > 1
	})
	s.Lock()
}

func (s *remembersIDs) nameOf(c *core.Consumption) string {
	if s.name != nil {
		return s.name(c)
	}
	return fmt.Sprintf("%s %d %s", c.Account, cmp.Or(c.KeySeq, -c.UserID), c.RequestID) // a request without a key has the ids of its user
}

func (s *remembersIDs) same(c *core.Consumption, first time.Time) bool {
	if s.repeats != nil {
		return s.repeats(c, first)
	}
	return c.Entry.At.Before(first.Add(cmp.Or(s.lasts, core.RequestIDRetention)))
}

func (s *remembersIDs) again(c *core.Consumption, first answered, now core.ConsumeResult) core.ConsumeResult {
	if s.repeated != nil {
		s.repeated(s.Store, c)
	}
	if !s.shared {
		first.FirstTerms, first.Limits = new(*first.FirstTerms), slices.Clone(first.Limits)
	}
	if s.answer != nil {
		return s.answer(first, now, c)
	}
	return first.ConsumeResult
}

func (s *remembersIDs) keeps(c *core.Consumption, a *answered) bool {
	if s.keep != nil {
		return s.keep(s.Store, c, a)
	}
	return a.Allowed && c.Counts()
}

func (s *remembersIDs) remember(name string, a answered) {
	s.known[name], s.order = a, append(s.order, name)
	if s.room > 0 && len(s.order) > s.room {
		delete(s.known, s.order[0])
		s.order = s.order[1:]
	}
}

// guessesRepeats answers a concurrent repeat before the first request is counted, with the usage that the
// first will probably get.
type guessesRepeats struct {
	core.Store
	mu      sync.Mutex
	begun   map[string]bool
	guessed map[string]int // value of others at the guess
	others  int            // counted requests without an id
}

func (s *guessesRepeats) Consume(ctx context.Context, c *core.Consumption) (core.ConsumeResult, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	name := c.Account + c.KeyID + c.RequestID
	switch {
	case c.RequestID == "":
		s.others++
	case !s.begun[name]:
		s.begun[name] = true
		s.mu.Unlock()
		within(overlap, func() bool {
			s.mu.Lock()
			defer s.mu.Unlock()
			others, ok := s.guessed[name]
			return ok && s.others > others
		})
		s.mu.Lock()
		s.guessed[name] = s.others // stop guessing
	default:
		if _, ok := s.guessed[name]; !ok {
			s.guessed[name] = s.others
			look := cost(withRequestID(*c, ""), 0)
			v, err := s.Store.Consume(ctx, &look)
			v.Usage.Used += c.Cost
			return core.ConsumeResult{Usage: v.Usage, Allowed: true, FirstTerms: new(c.Terms)}, err
		}
	}
	return s.Store.Consume(ctx, c)
}

// Without any of the defects remembersIDs is a correct store.
func TestRecallsIsGoodWithoutFlaw(t *testing.T) {
	fewerChecks(t)
	for _, c := range slices.Concat(requestIDCases, machineCases, exactCases) {
		if c.imports { // remembersIDs is no importer
			continue
		}
		if r := observe(t, c, rememberingIDs(ids{})()); r.Failed() {
			t.Errorf("the case %q: got failed, want passed:\n\t%s", c.name, r.text())
		}
	}
}

// A store does not remember a request that failed.
func TestRecallsKeepsNoFault(t *testing.T) {
	s := rememberingIDs(ids{})().Store
	c := withRequestID(core.Consumption{Account: "acct", KeyID: "key", Cost: 1}, "id")
	for range 2 {
		if _, err := s.Consume(t.Context(), &c); !errors.Is(err, core.ErrKeyNotFound) {
			t.Errorf("Consume of what is not there: got %v, want %v", err, core.ErrKeyNotFound)
		}
	}
}
