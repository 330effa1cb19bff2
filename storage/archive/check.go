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
)

// The bounds of the error for an invalid archive.
const (
	maxProblems = 100 // invalid records that are listed
	maxProblem  = 500 // bytes of the text of each
)

// Problems is the error for an archive with invalid records, and for one that the target cannot take. It is an [ErrRefused].
type Problems struct {
	First      []string // the first of them, each with its line if the archive is a file
	Total      int64
	brokenRule bool // of core
}

// Error lists the problems, one on a line.
func (p *Problems) Error() string {
	list := strings.Join(p.First, "\n")
	if more := p.Total - int64(len(p.First)); more > 0 {
		list += fmt.Sprintf("\nand %d more", more)
	}
	if p.brokenRule {
		list += "\nIf an earlier version wrote the archive: change these records in its service, and make a new backup. For a key prefix, upgrade that service first"
	}
	return ErrRefused.Error() + ":\n" + list
}

// Unwrap returns ErrRefused.
func (*Problems) Unwrap() error { return ErrRefused }

// checker is a sink that checks every record, and whether the target can take it. It writes nothing.
type checker struct {
	target   core.Store
	problems Problems
	firstDay core.Date // earlier days are left out

	names, ids map[string]bool        // of the accounts; ids has the ids of owner's keys, too
	ownerKeys  map[core.Digest]bool   // of all accounts
	digests    map[core.Digest]string // of the keys of all accounts, with the id of the key
	imported   []*core.Account        // accounts of the target that an import has created
	accounts   int                    // of the target
	emptyOnly  bool                   // every account of the target is in imported
	complete   int                    // accounts of the target that an import of the same records has completed

	at       Record
	account  *Account // the account of the next records
	kind     int      // index in Kinds of the last record
	plans    map[string]bool
	planSeq  int64
	users    map[int64]*owner
	userID   int64
	unique   map[core.UserFilter]bool // see [core.User.UniqueFilters]
	asKeys   map[core.Digest]int64    // the users whose external id may be a key, by its digest
	keys     map[string]*owner
	keySeq   int64
	last     position // of the last counter, day or event
	hasOwner bool     // the account has an owner's key

	usageOf  Owner   // of the last counter or day
	counter  Counter // its counter
	hasToday bool    // it has the day of its counter
}

// owner is a key or user that records may refer to.
type owner struct {
	number  int // in the order of the archive, from 1
	anchors core.Anchors
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
		ownerKeys: map[core.Digest]bool{}, digests: map[core.Digest]string{}, emptyOnly: emptyOnly}
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
	c.problems.Total++
	if len(c.problems.First) == maxProblems {
		return
	}
	text := fmt.Sprintf(format, args...)
	if len(text) > maxProblem {
		text = strings.ToValidUTF8(text[:maxProblem], "") + "…"
	}
	if c.at.Line > 0 {
		text = fmt.Sprintf("line %d: %s", c.at.Line, text)
	}
	c.problems.First = append(c.problems.First, text)
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
	} else if r.Kind == KindAccess {
		c.problem("access: a second one")
	}
	switch v := r.Value.(type) {
	case *core.OwnerKey:
		return c.putOwnerKey(ctx, v)
	case *Access:
		if c.belongs(v.AccountID) {
			c.rules("access", c.account.Name, v.Check())
		}
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
		c.owner(v.owner(), position{})
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
	o := c.owner(v.Owner, position{date: beforeDays})
	if o == nil {
		return
	}
	c.beginUsage(v.Owner, *v)
	c.notAhead("counter", v.At)
	c.notAhead("counter", v.LastUsedAt)
	if err := v.check(o.anchors); err != nil {
		c.problem("the counter of %v: %v", v.Owner, err)
	}
}

func (c *checker) putDay(v *Day) {
	if c.owner(v.Owner, position{date: v.Date}) == nil {
		return
	}
	if c.usageOf != v.Owner {
		c.beginUsage(v.Owner, Counter{At: time.Unix(0, 0)})
	}
	c.notAhead("day", v.Date.Start())
	if err := v.check(&c.counter); err != nil {
		c.problem("the day %v of %v: %v", v.Date, v.Owner, err)
	}
	c.hasToday = c.hasToday || v.Date == core.DateOf(c.counter.At)
}

// beginUsage begins the days of a key or user.
func (c *checker) beginUsage(of Owner, counter Counter) {
	c.endUsage()
	c.usageOf, c.counter, c.hasToday = of, counter, false
}

// endUsage checks the days of the last key or user as a whole.
func (c *checker) endUsage() {
	if today := core.DateOf(c.counter.At); c.counter.Today > 0 && !c.hasToday && today >= c.firstDay {
		c.problem("%v before has no day %v, and its counter has traffic of that day", c.usageOf, today)
	}
	c.usageOf, c.counter = Owner{}, Counter{}
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
