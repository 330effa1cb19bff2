// Package keyimport imports the keys of other systems from CSV. docs/migration.md describes the columns.
//
// [Check] reads the whole file and writes nothing. [Write] checks each row again, and writes batches of rows, each in one
// transaction. An interrupted import is finished by running it again: a key that the account has stays as it is.
package keyimport

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/secrets"
	"github.com/limitkeeper/limitkeeper/core/service"
	"github.com/limitkeeper/limitkeeper/internal/problem"
)

// batchRows is the number of rows in one transaction. It is at most [core.MaxImport]. With rows of a usual size, the
// transaction fits into one record of the event log of the embedded store: more rows need a record for each part, and a
// sync.
const batchRows = 400

// Options are the options of an import.
type Options struct {
	Account string // the name of the account that gets the keys

	// KeyPrefixes are the prefixes of keys that the file has only by digest. The account accepts them afterwards. Without
	// a prefix, such keys need [core.Account.AnyKeyForm].
	KeyPrefixes []string

	// DryRun makes [Run] check the file only.
	DryRun bool

	// Progress, if set, is called after each batch with the name of the pass, check or write, and the number of rows read.
	Progress func(pass string, rows int)
}

// Report has the results of an import. [Check] returns the numbers that a later [Write] of the same file returns.
type Report struct {
	Rows         int `json:"rows"`
	Keys         int `json:"keys"`          // created
	Users        int `json:"users"`         // created
	AlreadyThere int `json:"already_there"` // keys that the account had
	Used         int `json:"used"`          // counters that get the usage of the file
	UsedKept     int `json:"used_kept"`     // counters of users that had counted before, and stay as they are

	// The changes of the account.
	KeyPrefixes []string `json:"key_prefixes,omitempty"` // accepted from now on
	AnyKeyForm  bool     `json:"any_key_form,omitempty"` // see [core.Account]
}

// Unchanged reports whether the account had everything that the file has: the import changes nothing.
func (r Report) Unchanged() bool {
	return r.Keys+r.Users+r.Used+r.UsedKept == 0 && len(r.KeyPrefixes) == 0 && !r.AnyKeyForm
}

// Problems is the error of a file with lines that cannot be imported. A problem without a line is one of the whole file.
type Problems struct{ problem.List }

// Error lists the problems, one on a line.
func (p *Problems) Error() string {
	return strings.Join(append(p.Lines(), "Nothing was changed."), "\n")
}

func (p *Problems) add(line int, reason string) { p.Add(problem.Problem{Line: line, Text: reason}) }

// Run checks a file and then writes it. open is called once for each of the two passes. If the file has bad lines, the error
// is [*Problems] and nothing is changed.
func Run(ctx context.Context, s *service.Service, store core.Importer, open func() (io.ReadCloser, error), o Options) (Report, error) {
	pass := func(fn func(io.Reader) (Report, error)) (Report, error) {
		f, err := open()
		if err != nil {
			return Report{}, err
		}
		defer f.Close()
		return fn(f)
	}
	checked, err := pass(func(f io.Reader) (Report, error) { return Check(ctx, s, store, f, o) })
	if err != nil || o.DryRun {
		return checked, err
	}
	return pass(func(f io.Reader) (Report, error) { return Write(ctx, s, store, f, checked, o) })
}

// Check checks a file against the account, and writes nothing. Bad lines are the error [*Problems].
func Check(ctx context.Context, s *service.Service, store core.Importer, f io.Reader, o Options) (Report, error) {
	p, err := newPass(ctx, s, store, o)
	if err != nil {
		return Report{}, err
	}
	if err := p.read(f, "check"); err != nil {
		return Report{}, err
	}
	if err := cmp.Or(p.checkAccount(), p.checkStoredUsers()); err != nil {
		return Report{}, err
	}
	if p.problems.Total > 0 {
		return Report{}, &p.problems
	}
	err = p.setShared()
	return p.report, err
}

// Write writes a file that [Check] has checked, with the report of Check. If the file or the account has changed since then so that a line is bad,
// Write stops before the batch of that line.
func Write(ctx context.Context, s *service.Service, store core.Importer, f io.Reader, checked Report, o Options) (Report, error) {
	p, err := newPass(core.WithBulk(ctx, "key.import"), s, store, o)
	if err != nil {
		return Report{}, err
	}
	p.writes = true
	if _, err := s.UpdateAccount(ctx, p.account, accountPatch(checked)); err != nil { // before the first key is written
		return Report{}, err
	}
	p.report.KeyPrefixes, p.report.AnyKeyForm = checked.KeyPrefixes, checked.AnyKeyForm
	if err := p.read(f, "write"); err != nil {
		return p.report, err
	}
	return p.report, p.setShared()
}

// NoAccountError is the error for an account that does not exist: its name.
type NoAccountError string

func (e NoAccountError) Error() string { return fmt.Sprintf("there is no account %q", string(e)) }

// pass is one pass over a file.
type pass struct {
	ctx     context.Context
	s       *service.Service
	store   core.Importer
	account string // its id
	o       Options
	now     time.Time
	writes  bool

	plans    planSet
	users    userSet
	forms    keyForms
	problems Problems
	report   Report

	// By the first half of the digest. Empty in a pass that writes.
	lines       map[[16]byte]int32 // the lines of the keys
	externalIDs map[[16]byte]int32 // the first lines of the external ids

	batch   []row
	digests []secrets.Digest // of the batch
}

func newPass(ctx context.Context, s *service.Service, store core.Importer, o Options) (*pass, error) {
	a, err := s.AccountByName(ctx, o.Account)
	if errors.Is(err, core.ErrAccountNotFound) {
		return nil, NoAccountError(o.Account)
	}
	if err != nil {
		return nil, err
	}
	p := &pass{ctx: ctx, s: s, store: store, account: a.ID, o: o, now: s.Now(), lines: map[[16]byte]int32{}, externalIDs: map[[16]byte]int32{},
		forms: keyForms{accepted: append(slices.Clone(a.KeyPrefixes), o.KeyPrefixes...), given: o.KeyPrefixes, anyForm: a.AnyKeyForm, words: map[string]map[string]bool{}}}
	if p.plans, err = loadPlans(ctx, s, a.ID); err != nil {
		return nil, err
	}
	p.users, err = newUserSet(ctx, s, a.ID)
	return p, err
}

// read reads a file, and handles its rows in batches.
func (p *pass) read(f io.Reader, name string) error {
	r, err := newReader(f)
	if err != nil {
		p.problems.add(1, err.Error())
		return &p.problems
	}
	for more := true; more; {
		p.batch, p.digests = p.batch[:0], p.digests[:0]
		for more && len(p.batch) < batchRows {
			next, err := r.next()
			if err == io.EOF {
				more = false
				break
			}
			if err != nil {
				return err
			}
			bad, _ := errors.AsType[badRow](next.err)
			p.report.Rows, more = p.report.Rows+1, !bad.last
			p.batch, p.digests = append(p.batch, next), append(p.digests, next.digest)
		}
		if err := p.handle(); err != nil {
			return err
		}
		if p.o.Progress != nil {
			p.o.Progress(name, p.report.Rows)
		}
	}
	return nil
}

// handle checks the rows of the batch, and writes them in a pass that writes.
func (p *pass) handle() error {
	if err := p.ctx.Err(); err != nil {
		return err
	}
	claim, err := p.s.ClaimDigests(p.ctx, p.digests)
	if err != nil {
		return err
	}
	defer claim.Release()
	idIsKey, err := p.areKeys()
	if err != nil {
		return err
	}
	for i := range p.batch {
		err := p.check(&p.batch[i], claim.Holders[i])
		if err == nil && p.batch[i].key == nil && idIsKey[i] {
			err = bad("%s: it is a key of the account, and would be stored in clear", p.batch[i].idColumn())
		}
		if err != nil {
			row, isBad := errors.AsType[badRow](err)
			if !isBad {
				return err
			}
			p.problems.add(p.batch[i].line, row.reason)
		}
	}
	if !p.writes {
		return nil
	}
	if p.problems.Total > 0 {
		return fmt.Errorf("the file or the account has changed since the check: %v. The lines before are imported", p.problems.First[0])
	}
	return p.write(claim)
}

// check checks a row, and sets its user, its plan and its key.
func (p *pass) check(r *row, holder *core.Key) error {
	if r.err != nil {
		return r.err
	}
	if !p.writes { // in the second pass, the account has a key that comes again
		if first, ok := p.lines[half(r.digest)]; ok {
			return bad("the key is on line %d, too", first)
		}
		p.lines[half(r.digest)] = int32(r.line)
	}
	if holder != nil && holder.AccountID != p.account {
		return bad("another account has this key")
	}
	p.forms.add(r)
	r.key = holder
	if holder != nil {
		p.report.AlreadyThere++
		if r.used > 0 {
			return p.checkPresent(r)
		}
		return nil
	}
	return p.checkNew(r)
}

// checkPresent checks a row whose key the account has. The usage is that of the plan that the key has now.
func (p *pass) checkPresent(r *row) error {
	if r.key.PlanID == "" {
		u, err := p.users.byID(p.ctx, p.s, p.account, r.key.UserID)
		if err == nil {
			u.used += r.used
		}
		return err
	}
	r.plan = p.plans.byID[r.key.PlanID]
	return nil
}

// checkNew checks a row whose key the account does not have.
func (p *pass) checkNew(r *row) (err error) {
	if err := r.patch.Check(p.now); err != nil {
		return badOf(err, "")
	}
	if err := p.checkExternalID(r); err != nil {
		return err
	}
	if r.plan, err = p.plans.find(r.planName); err != nil {
		return err
	}
	if r.user, err = p.users.find(p.ctx, p.s, p.account, r); err != nil {
		return err
	}
	u := &p.users.list[r.user]
	plan := r.plan
	if plan == nil {
		if plan = p.plans.byID[u.plan]; plan == nil {
			return bad("plan: the user has no plan, so the key needs one")
		}
		u.used += r.used
		u.imported = u.imported || r.used > 0
	}
	if _, limited := primaryPeriod(plan); r.used > 0 && !limited {
		return bad("used: the plan %s has no limit of requests", quoted(plan.Name))
	}
	p.report.Keys++
	if u.id == 0 && !u.counted {
		u.counted = true
		p.report.Users++
	}
	if r.used > 0 && r.plan != nil && !p.writes {
		p.report.Used++
	}
	return nil
}

// checkAccount checks the changes of the account, and its caps.
func (p *pass) checkAccount() error {
	p.report.KeyPrefixes, p.report.AnyKeyForm = p.forms.result()
	a, err := p.s.Account(p.ctx, p.account)
	if err == nil {
		has := func(prefix string) bool { return slices.Contains(a.KeyPrefixes, prefix) } // a given prefix
		p.report.KeyPrefixes = slices.DeleteFunc(p.report.KeyPrefixes, has)
		err = p.s.CheckAccountPatch(p.ctx, a.Name, accountPatch(p.report))
	}
	if err == nil && p.report.Keys > 0 {
		err = p.s.CheckRoom(p.ctx, p.account, p.report.Users, p.report.Keys)
	}
	if e, invalid := errors.AsType[*core.Error](err); invalid && e.Code == core.CodeValidation {
		p.problems.add(0, e.Detail)
		return nil
	}
	return err
}

func accountPatch(r Report) core.AccountPatch {
	patch := core.AccountPatch{Accept: r.KeyPrefixes}
	if r.AnyKeyForm {
		patch.AnyKeyForm = new(true)
	}
	return patch
}
