package badgerstore

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
)

// answersOf returns the data of an account as the store returns it: one line for each user, plan, key, digest, counter,
// day and entry of a history.
func answersOf(s *Store, account string, digests []core.Digest) (string, error) {
	w := answers{s: s, account: account}
	w.plans()
	w.users()
	w.keys()
	for _, d := range digests {
		k, err := s.KeyByDigest(context.Background(), d)
		if errors.Is(err, core.ErrKeyNotFound) {
			w.line("digest %x: no key", d)
			continue
		}
		if w.fail(err); err == nil {
			w.line("digest %x: %s", d, k.ID)
		}
	}
	return w.text.String(), w.err
}

type answers struct {
	s       *Store
	account string
	text    strings.Builder
	err     error // the first error
}

func (w *answers) line(format string, args ...any) { _, _ = fmt.Fprintf(&w.text, format+"\n", args...) }

func (w *answers) fail(err error) { w.err = firstOf(w.err, err) }

func (w *answers) plans() {
	list, total, err := w.s.Plans(context.Background(), w.account, everything)
	w.fail(err)
	w.line("plans: %d", total)
	for _, p := range list {
		w.line("plan %s: %d, %q, limit %d", p.ID, p.Seq, p.Name, p.Limit)
	}
}

func (w *answers) users() {
	list, total, err := w.s.Users(context.Background(), w.account, core.UserFilter{}, everything)
	w.fail(err)
	w.line("users: %d", total)
	for _, u := range list {
		email := ""
		if u.Email != nil {
			email = *u.Email
		}
		_, found, err := w.s.Users(context.Background(), w.account, core.UserFilter{Email: email}, everything)
		w.fail(err)
		_, onPlan, err := w.s.Users(context.Background(), w.account, core.UserFilter{OnPlan: u.PlanID}, everything)
		w.fail(err)
		w.line("user %d: %q, email %q of %d, plan %q of %d", u.ID, u.Name, email, found, u.PlanID, onPlan)
		w.counter(core.CounterID{Account: w.account, UserID: u.ID})
	}
}

func (w *answers) keys() {
	list, total, err := w.s.Keys(context.Background(), w.account, core.KeyFilter{}, everything)
	w.fail(err)
	_, active, err := w.s.Keys(context.Background(), w.account, core.KeyFilter{Status: core.KeyActive}, everything)
	w.fail(err)
	w.line("keys: %d, active %d", total, active)
	for _, k := range list {
		w.line("key %s: %d, user %d, plan %q, %s, digests %x", k.ID, k.Seq, k.UserID, k.PlanID, k.Status, k.Digests())
		w.counter(core.CounterID{Account: w.account, KeyID: k.ID})
	}
}

// counter writes the lines of a counter, its days and its history.
func (w *answers) counter(of core.CounterID) {
	cs, err := w.s.Counters(context.Background(), []core.CounterID{of})
	if w.fail(err); err != nil {
		return
	}
	if cs[0].Requests != (core.PeriodUsage{}) {
		w.line("  used %v, last %v, denials not recorded %d", windowsOf(&cs[0]), cs[0].LastUsedAt, cs[0].DeniedOmitted)
	}
	days, err := w.s.CounterDays(context.Background(), of)
	w.fail(err)
	for _, d := range days {
		w.line("  day %v: %v, shared %v", int(d.Date), d.Traffic, d.Shared)
	}
	entries, _, err := w.s.History(context.Background(), of, time.Time{}, everything)
	w.fail(err)
	for _, e := range entries {
		w.line("  %v: %s of %d: %s %s from %s, cost %d, denied %v", e.At.UTC().UnixNano(), e.KeyID, e.UserID, e.Method, e.Endpoint, e.IP, e.Cost, e.Denied)
	}
}

// windowsOf returns the windows of a day, a week, a month and a year, as a counter had them before schema 7.
func windowsOf(c *core.Counter) (list [4]core.WindowUsage) {
	for p := range list {
		if c.At == 0 {
			break
		}
		start := core.Period(p).Window(time.Unix(c.At, 0)).Start
		list[p] = core.WindowUsage{Start: start.Unix(), Used: c.Requests[p]}
	}
	return list
}
