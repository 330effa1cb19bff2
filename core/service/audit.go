package service

import (
	"cmp"
	"context"
	"errors"
	"strings"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
)

// acting returns the context of a change that leaves an entry in the audit log. The time is in microseconds, as [core.AuditEntry.Seq] is.
func (s *Service) acting(ctx context.Context) context.Context {
	return core.WithAuditTime(ctx, s.Now().Truncate(time.Microsecond))
}

// actingStore is a store whose changes of the ways to sign in leave entries in the audit log.
type actingStore struct {
	core.Store
	acting func(context.Context) context.Context
}

// UpdateAccess implements [core.Store].
func (s actingStore) UpdateAccess(ctx context.Context, account string, fn func(*core.Access) error) (*core.Access, error) {
	return s.Store.UpdateAccess(s.acting(ctx), account, fn)
}

// auditedAdjustment makes an adjustment, and reports whether it was made before with the same request id. It appends the entry to the audit log first, so
// that a crash leaves no adjustment without an entry. It removes the entry of an adjustment that was not made, unless the store is unavailable.
func (s *Service) auditedAdjustment(ctx context.Context, c *core.Consumption, requestID string) (repeated bool, err error) {
	var entries []core.AuditEntry
	if a := core.NewAuditing(s.acting(ctx), c.Account); a != nil {
		a.Adjusted(c, requestID)
		_, entries = a.Entries()
		if err := s.store.AppendAudit(ctx, c.Account, entries); err != nil {
			return false, err
		}
	}
	v, err := s.store.Consume(ctx, c)
	repeated = v.FirstTerms != nil
	if len(entries) > 0 && (repeated || err != nil && !errors.Is(err, core.ErrUnavailable)) {
		_, failed := s.store.RemoveAudit(ctx, c.Account, entries[0].Seq, entries[0].Seq)
		err = errors.Join(err, failed)
	}
	return repeated, err
}

// trimMargin keeps entries longer than an import takes: an import compares the entries that it has written.
const trimMargin = 24 * time.Hour

// TrimAudit removes the entries of all audit logs that are older than [core.AuditRetention] and trimMargin. After an error of one account it continues with
// the others, and returns the first error.
func (s *Service) TrimAudit(ctx context.Context) error {
	last := core.AuditSeq(s.now().Add(-core.AuditRetention-trimMargin)) - 1
	var first error
	err := s.EachAccount(ctx, func(a *core.Account) error {
		more, err := !a.Deleting, ctx.Err()
		for more && err == nil {
			if more, err = s.store.RemoveAudit(ctx, a.ID, 0, last); err == nil {
				err = ctx.Err()
			}
		}
		if !errors.Is(err, core.ErrAccountNotFound) { // deleted meanwhile
			first = cmp.Or(first, err)
		}
		return ctx.Err()
	})
	return cmp.Or(first, err)
}

// AuditFilter selects entries of an audit log. The zero value selects all.
type AuditFilter struct {
	Action string // the action, or its part before the dot for all actions on a kind; "" for any
	Actor  string // the kind, id or name of the actor; "" for any
	Target string // the kind, id or name of the target; "" for any

	From, To time.Time // From ≤ time < To; the zero time for no bound

	Before int64 // only entries with a smaller number; 0 for all
}

// all reports whether the filter selects all entries, apart from Before.
func (f *AuditFilter) all() bool {
	return f.Action == "" && f.Actor == "" && f.Target == "" && f.From.IsZero() && f.To.IsZero()
}

func (f *AuditFilter) matches(e *core.AuditEntry) bool {
	is := func(want string, has ...string) bool {
		for _, text := range has {
			if want == "" || want == text {
				return true
			}
		}
		return false
	}
	kind, _, _ := strings.Cut(e.Action, ".")
	return is(f.Action, e.Action, kind) && is(f.Actor, string(e.Actor.Kind), e.Actor.ID, e.Actor.Name) &&
		is(f.Target, e.Target.Kind, e.Target.ID, e.Target.Name) && !e.At.Before(f.From) && (f.To.IsZero() || e.At.Before(f.To))
}

// AuditPage is a page of an audit log.
type AuditPage struct {
	Entries []core.AuditEntry
	Found   int    // all matching entries, on this and on other pages
	Next    string // the cursor behind the last entry, "" at the end
}

// auditBatch is the number of entries that a search reads at once.
const auditBatch = 500

// Audit returns a page of the matching entries of the audit log of an account, newest first. With a filter, or on a later page, it is a large query: an
// account runs one at a time.
func (s *Service) Audit(ctx context.Context, account string, f AuditFilter, p core.Page) (page AuditPage, err error) {
	if f.all() && p.Offset() == 0 {
		list, total, err := s.store.Audit(ctx, account, f.Before, p.Size+1)
		page.Found = total
		page.add(list, p.Size)
		return page, err
	}
	err = s.runQuery(ctx, account, wholeAccount, func() error { return s.searchAudit(ctx, account, &f, p, &page) })
	return page, err
}

// add adds entries until the page is full, and sets Next if an entry is left over.
func (a *AuditPage) add(list []core.AuditEntry, size int) {
	for i := range list {
		if len(a.Entries) == size {
			a.Next = a.Entries[size-1].ID()
			return
		}
		a.Entries = append(a.Entries, list[i])
	}
}

// searchAudit reads the whole log, newest first, or its part since f.From.
func (s *Service) searchAudit(ctx context.Context, account string, f *AuditFilter, p core.Page, page *AuditPage) error {
	oldest, skip := core.AuditSeq(f.From), p.Offset()
	for before := int64(0); ; {
		list, _, err := s.store.Audit(ctx, account, before, auditBatch)
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			return err
		}
		for i := range list {
			e := &list[i]
			if before = e.Seq; !f.matches(e) {
				continue
			}
			if page.Found++; f.Before != 0 && e.Seq >= f.Before {
				continue
			}
			if skip--; skip < 0 {
				page.add(list[i:i+1], p.Size)
			}
		}
		if len(list) < auditBatch || before < oldest {
			return nil
		}
	}
}
