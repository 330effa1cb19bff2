package archive

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/secrets"
	"github.com/limitkeeper/limitkeeper/internal/problem"
)

// maxProblem bounds the text of a problem, in bytes.
const maxProblem = 500

// Problems is the error for an archive with invalid records, and for one that the target cannot take. It is an [ErrRefused].
type Problems struct {
	problem.List      // each with its line if the archive is a file
	brokenRule   bool // of core
}

// Error lists the problems, one on a line.
func (p *Problems) Error() string {
	lines := p.Lines()
	if p.brokenRule {
		lines = append(lines, "If an earlier version wrote the archive: change these records in its service, "+
			"and make a new backup. For a key prefix, upgrade that service first")
	}
	return ErrRefused.Error() + ":\n" + strings.Join(lines, "\n")
}

// Unwrap returns ErrRefused.
func (*Problems) Unwrap() error { return ErrRefused }

// checker is a sink that checks every record, and whether the target can take it. It writes nothing.
type checker struct {
	target   core.Store
	problems Problems
	firstDay core.Date // earlier days are left out

	names, ids map[string]bool           // of the accounts; ids has the ids of owner's keys, too
	ownerKeys  map[secrets.Digest]bool   // of all accounts
	digests    map[secrets.Digest]string // of the keys of all accounts, with the id of the key
	imported   []*core.Account           // accounts of the target that an import has created
	accounts   int                       // of the target
	emptyOnly  bool                      // every account of the target is in imported
	complete   int                       // accounts of the target that an import of the same records has completed

	at      Record
	account *Account // the account of the next records
	kind    int      // index in Kinds of the last record
	plans   map[string]bool
	planSeq int64
	userID  int64
	unique  map[core.UserFilter]bool // see [core.User.UniqueFilters]
	asKeys  map[secrets.Digest]int64 // the users whose external id may be a key, by its digest
	keySeq  int64

	webhooks, events     map[string]bool // ids
	webhookSeq, eventSeq int64

	owners   map[core.CounterID]int // the users and keys, with their numbers in the order of the archive, from 1
	anchors  anchors
	last     position // of the last counter, day or event
	hasOwner bool     // the account has an owner's key

	audit    [2]auditSize // of the two audit logs of the account
	auditSeq int64        // of the last entry

	usageOf  core.CounterID // of the last counter or day
	counter  Counter        // its counter
	hasToday bool           // it has the day of its counter
}

// position is the place of a record within its section: sorted by user and key, and then by date. A counter comes before its
// days.
type position struct {
	number int
	date   core.Date
}

// beforeDays is the date of the position of a counter.
const beforeDays = math.MinInt32

func newChecker(ctx context.Context, target core.Store, emptyOnly bool) (*checker, error) {
	c := &checker{target: target, names: map[string]bool{}, ids: map[string]bool{},
		ownerKeys: map[secrets.Digest]bool{}, digests: map[secrets.Digest]string{}, emptyOnly: emptyOnly}
	if target == nil {
		return c, nil
	}
	accounts, total, err := target.Accounts(ctx, core.Page{Number: 1, Size: pageOfAccounts})
	if err != nil {
		return nil, err
	}
	if c.accounts = total; emptyOnly {
		if whole := slices.IndexFunc(accounts, func(a *core.Account) bool { return a.Import == nil }); whole >= 0 {
			return nil, fmt.Errorf("%w: the store is not empty: it has the account %q. Restore into an empty store, or use import",
				ErrRefused, accounts[whole].Name)
		}
	}
	return c, nil
}

// pageOfAccounts is the number of accounts of which a restore looks for a whole one.
const pageOfAccounts = 1000

// problem notes a problem of the present record.
func (c *checker) problem(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if len(text) > maxProblem {
		text = strings.ToValidUTF8(text[:maxProblem], "") + "…"
	}
	c.problems.Add(problem.Problem{Line: int(c.at.Line), Text: text})
}

// Put implements [Sink].
func (c *checker) Put(ctx context.Context, r Record) error {
	c.at = r
	if r.Err != nil {
		c.problem("%s: %v", r.Kind, r.Err)
		return nil
	}
	if a, ok := r.Value.(*Account); ok {
		return c.putAccount(ctx, a)
	}
	if c.account == nil {
		c.problem("a record of the kind %s before the first account", r.Kind)
		return nil
	}
	kind := slices.Index(Kinds(), section(r.Kind))
	if kind < c.kind {
		c.problem("a record of the kind %s after records of the kind %s", r.Kind, Kinds()[c.kind])
		return nil
	}
	if kind > c.kind {
		c.endUsage()
		c.kind, c.last = kind, position{}
	} else if r.Kind == KindAccess || r.Kind == KindPrices {
		c.problem("%s: a second one", r.Kind)
	}
	switch v := r.Value.(type) {
	case *core.OwnerKey:
		return c.putOwnerKey(ctx, v)
	case *Access:
		if c.belongs(v.AccountID) {
			c.rules("access", c.account.Name, v.Check())
		}
	case *Prices:
		if c.belongs(v.AccountID) {
			c.rules("prices", c.account.Name, v.Check())
			c.notAhead("prices", v.UpdatedAt)
			v.Former = nil // no archive has them: see exporter
		}
	case *core.Webhook:
		c.putWebhook(v)
	case *WebhookEvent:
		c.putWebhookEvent(v)
	case *core.Plan:
		c.putPlan(v)
	case *core.User:
		c.putUser(v)
	case *core.Key:
		return c.putKey(ctx, v)
	case *Counter:
		c.putCounter(v)
	case *Day:
		c.putDay(v)
	case *Event:
		if err := v.check(); err != nil {
			c.problem("event: %v", err)
			return nil
		}
		c.notAhead("event", v.At)
		c.inOrder(v.owner(), position{})
	case *Audit:
		c.putAudit(v)
	}
	return nil
}

// rules notes the rule of core that a resource breaks.
func (c *checker) rules(kind, id string, err error) bool {
	c.problems.brokenRule = c.problems.brokenRule || err != nil
	if e, ok := errors.AsType[*core.Error](err); ok {
		c.problem("%s %s: %s: %s", kind, id, e.Field, e.Detail)
	} else if err != nil {
		c.problem("%s %s: %v", kind, id, err)
	}
	return err == nil
}

// notAhead notes a time that is later than latest.
func (c *checker) notAhead(kind string, at time.Time) {
	if at.After(latest) {
		c.problem("%s: it is of %s, and times are before %d", kind, at.Format(time.RFC3339), latest.Year())
	}
}

func (c *checker) putCounter(v *Counter) {
	if !c.inOrder(v.CounterID, position{date: beforeDays}) {
		return
	}
	c.beginUsage(v.CounterID, *v)
	c.notAhead("counter", v.At)
	c.notAhead("counter", v.LastUsedAt)
	c.notAhead("counter", v.LastRefusedAt)
	if err := v.check(c.anchors[v.CounterID]); err != nil {
		c.problem("the counter of %s: %v", nameOf(v.CounterID), err)
	}
}

func (c *checker) putDay(v *Day) {
	if !c.inOrder(v.CounterID, position{date: v.Date}) {
		return
	}
	if c.usageOf != v.CounterID {
		c.beginUsage(v.CounterID, Counter{At: time.Unix(0, 0)})
	}
	c.notAhead("day", v.Date.Start())
	if err := v.check(&c.counter); err != nil {
		c.problem("the day %v of %s: %v", v.Date, nameOf(v.CounterID), err)
	}
	c.hasToday = c.hasToday || v.Date == core.DateOf(c.counter.At)
}

// beginUsage begins the days of a key or user.
func (c *checker) beginUsage(of core.CounterID, counter Counter) {
	c.endUsage()
	c.usageOf, c.counter, c.hasToday = of, counter, false
}

// endUsage checks the days of the last key or user as a whole.
func (c *checker) endUsage() {
	if today := core.DateOf(c.counter.At); c.counter.Today > 0 && !c.hasToday && today >= c.firstDay {
		c.problem("%s before has no day %v, and its counter has traffic of that day", nameOf(c.usageOf), today)
	}
	c.usageOf, c.counter = core.CounterID{}, Counter{}
}

// belongs reports whether a record belongs to the present account.
func (c *checker) belongs(account string) bool {
	if account == c.account.ID {
		return true
	}
	c.problem("%s: it belongs to the account %q, and stands after the account %q", c.at.Kind, account, c.account.ID)
	return false
}

// finish ends the check. sum is the digest of all records.
func (c *checker) finish(sum string) error {
	c.endAccount()
	c.at = Record{}
	for _, a := range c.imported {
		switch {
		case a.Import.SHA256 == sum && a.Import.Complete:
			c.complete++
		case a.Import.SHA256 == sum:
		case a.Import.Complete:
			c.problem("the store already has the account %q, from another import. %s", a.Name, c.advice())
		default:
			c.problem("the store has an incomplete account %q: an import of another archive has begun. Finish that import first", a.Name)
		}
	}
	if c.emptyOnly && c.accounts > len(c.imported) {
		c.problem("the store is not empty: it has accounts that the archive does not have. Restore into an empty store, or use import")
	}
	if len(c.names) == 0 && c.problems.Total == 0 {
		c.problem("the archive has no accounts")
	}
	if c.problems.Total > 0 {
		return &c.problems
	}
	return nil
}
