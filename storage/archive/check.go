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
	accounts, total, err := target.Accounts(ctx, core.Page{Number: 1, Size: pageOfAccounts})
	if err != nil {
		return nil, err
	}
	c := &checker{target: target, names: map[string]bool{}, ids: map[string]bool{},
		ownerKeys: map[core.Digest]bool{}, digests: map[core.Digest]string{}, accounts: total, emptyOnly: emptyOnly}
	if emptyOnly {
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

func (c *checker) putAccount(ctx context.Context, a *Account) error {
	c.endAccount()
	c.account, c.kind, c.hasOwner = a, 0, false
	c.plans, c.planSeq, c.users, c.userID = map[string]bool{}, 0, map[int64]*owner{}, 0
	c.unique, c.asKeys, c.keys, c.keySeq = map[core.UserFilter]bool{}, map[core.Digest]int64{}, map[string]*owner{}, 0
	switch {
	case !isID(a.ID):
		c.problem("account: the id must be 1 to 64 letters, digits, _ or -")
	case c.ids[a.ID] || c.names[a.Name]:
		c.problem("account: a second account %q (%s)", a.Name, a.ID)
	case a.Import != nil:
		c.problem("account: import is not for archives")
	case a.Last.User == 0 && a.Last.Key > 0:
		c.problem("account: last: there is a number of a key, and none of a user")
	}
	c.rules("account", a.ID, a.Check())
	c.ids[a.ID], c.names[a.Name] = true, true
	return c.checkTarget(ctx, a)
}

// checkTarget checks that the target has no account with the id or the name, or only one whose import has not finished.
func (c *checker) checkTarget(ctx context.Context, a *Account) error {
	byName, err := c.target.AccountByName(ctx, a.Name)
	if err != nil && !errors.Is(err, core.ErrAccountNotFound) {
		return err
	}
	byID, err := c.target.Account(ctx, a.ID)
	if err != nil && !errors.Is(err, core.ErrAccountNotFound) {
		return err
	}
	switch {
	case byName == nil && byID == nil:
	case byName != nil && byName.ID != a.ID:
		c.problem("account: the store has another account %q: its id is %s, and %s in the archive. %s", a.Name, byName.ID, a.ID, c.advice())
	case byID.Name != a.Name:
		c.problem("account: the store has the account %s with the name %q, and not %q", a.ID, byID.Name, a.Name)
	case byID.Import == nil:
		c.problem("account: the store already has the account %q. %s", a.Name, c.advice())
	default:
		c.imported = append(c.imported, byID)
	}
	return nil
}

// advice says what to do when the target has an account of the archive.
func (c *checker) advice() string {
	if c.emptyOnly {
		return "Restore into an empty store"
	}
	return "An import only adds accounts: choose others with --account, or another store"
}

// endAccount checks an account as a whole.
func (c *checker) endAccount() {
	if c.account == nil {
		return
	}
	c.endUsage()
	a := c.account
	if !c.hasOwner {
		c.problem("the account %q before has no owner's key", a.Name)
	}
	if !isNumber(a.Last.User, a.Last.Plan, a.Last.Key) {
		c.problem("the account %q before: the numbers of last are from 0 to %d", a.Name, int64(maxNumber))
	}
	if c.plans[placeholderID("plan_", a.Last.Plan)] || c.keys[placeholderID("key_", a.Last.Key)] != nil {
		c.problem("the account %q before: a plan or key has the id of a placeholder", a.Name)
	}
	if a.Last.User < c.userID || a.Last.Plan < c.planSeq || a.Last.Key < c.keySeq {
		c.problem("the account %q before: last is %+v, less than the numbers of its resources", a.Name, a.Last)
	}
}

func (c *checker) putOwnerKey(ctx context.Context, k *core.OwnerKey) error {
	switch {
	case !c.belongs(k.AccountID):
		return nil
	case !isID(k.ID) || k.Digest == core.Digest{}:
		c.problem("owner_key: an id of letters and digits and a digest are required")
		return nil
	case c.ownerKeys[k.Digest] || c.ids[k.ID]:
		c.problem("owner_key %s: a second one with this id or digest", k.ID)
	}
	c.rules("owner_key", k.ID, k.Check())
	c.hasOwner, c.ownerKeys[k.Digest], c.ids[k.ID] = true, true, true
	if c.accounts == 0 {
		return nil
	}
	had, err := c.target.OwnerKeyByDigest(ctx, k.Digest)
	if errors.Is(err, core.ErrOwnerKeyNotFound) {
		return nil
	}
	if err == nil && had.AccountID != k.AccountID {
		c.problem("owner_key %s: the store has this key in another account", k.ID)
	}
	return err
}

func (c *checker) putPlan(p *core.Plan) {
	switch {
	case !c.belongs(p.AccountID):
		return
	case !isID(p.ID) || p.Seq <= c.planSeq:
		c.problem("plan %s: plans have an id, and are sorted by seq, each once", p.ID)
	case c.plans[p.ID]:
		c.problem("plan %s: a second one with this id", p.ID)
	}
	c.rules("plan", p.ID, p.Check())
	c.plans[p.ID], c.planSeq = true, max(c.planSeq, p.Seq)
}

func (c *checker) putUser(u *core.User) {
	switch {
	case !c.belongs(u.AccountID):
		return
	case u.ID <= c.userID:
		c.problem("user %d: users are sorted by id, from 1, each once", u.ID)
	}
	for _, f := range u.UniqueFilters() {
		if c.unique[f] {
			c.problem("user %d: a second one with this email or external id", u.ID)
		}
		c.unique[f] = true
	}
	if core.HasKeyCharacters(u.ExternalID) {
		c.asKeys[core.DigestOf(u.ExternalID)] = u.ID
	}
	c.checkPlanID("user", fmt.Sprint(u.ID), u.PlanID)
	anchors := u.Anchors
	if !c.rules("user", fmt.Sprint(u.ID), u.Check()) {
		anchors = nil // any number of them would make each counter expensive
	}
	c.userID = max(c.userID, u.ID)
	c.users[u.ID] = &owner{len(c.users) + 1, anchors}
}

func (c *checker) checkPlanID(kind, id, plan string) {
	if plan != "" && !c.plans[plan] {
		c.problem("%s %s: its plan %s is not in the archive", kind, id, plan)
	}
}

func (c *checker) putKey(ctx context.Context, k *core.Key) error {
	user := c.users[k.UserID]
	switch {
	case !c.belongs(k.AccountID):
		return nil
	case !isID(k.ID) || k.Seq <= c.keySeq:
		c.problem("key %s: keys have an id, and are sorted by seq, each once", k.ID)
	case c.keys[k.ID] != nil:
		c.problem("key %s: a second one with this id", k.ID)
	case user == nil:
		c.problem("key %s: its user %d is not in the archive", k.ID, k.UserID)
		user = &owner{}
	}
	c.rules("key", k.ID, k.Check())
	c.checkPlanID("key", k.ID, k.PlanID)
	c.keySeq = max(c.keySeq, k.Seq)
	if user != nil {
		c.keys[k.ID] = &owner{len(c.users) + len(c.keys) + 1, user.anchors}
	}
	for _, d := range k.Digests() {
		other, twice := c.digests[d]
		switch {
		case d == core.Digest{}:
			c.problem("key %s: digest is required", k.ID)
		case twice:
			c.problem("key %s: it has the value of the key %s", k.ID, other)
		}
		c.digests[d] = k.ID
		if u := c.asKeys[d]; u != 0 {
			c.rules("key", k.ID, fmt.Errorf("its value is the external id of the user %d, stored in clear", u))
		}
		if err := c.checkKeyInTarget(ctx, k, d); err != nil {
			return err
		}
	}
	return nil
}

// checkKeyInTarget checks that no other key of the target has the digest.
func (c *checker) checkKeyInTarget(ctx context.Context, k *core.Key, d core.Digest) error {
	if c.accounts == 0 {
		return nil
	}
	had, err := c.target.KeyByDigest(ctx, d)
	if errors.Is(err, core.ErrKeyNotFound) {
		return nil
	}
	if err == nil && (had.AccountID != k.AccountID || had.ID != k.ID) {
		c.problem("key %s: a key of the store has the same value", k.ID)
	}
	return err
}

// owner returns the key or user that a record belongs to, nil if there is none. at is the position of the record, without
// the number of its owner. Counters and days are there once; the events of a history stand together.
func (c *checker) owner(of Owner, at position) *owner {
	if !c.belongs(of.AccountID) {
		return nil
	}
	o := c.keys[of.KeyID]
	if of.KeyID == "" {
		o = c.users[of.UserID]
	}
	if o == nil || of.KeyID != "" && of.UserID != 0 {
		c.problem("%s: %v is not in the archive", c.at.Kind, of)
		return nil
	}
	at.number = o.number
	sorted := at.number > c.last.number || at.number == c.last.number && at.date > c.last.date
	if c.at.Kind == KindEvent {
		sorted = sorted || at == c.last
	}
	if !sorted {
		c.problem("%s of %v: records are sorted as their users and keys, each once", c.at.Kind, of)
	}
	c.last = at
	return o
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
