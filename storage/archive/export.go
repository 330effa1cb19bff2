package archive

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
)

// ErrChanged means that a store that serves has changed in a way that an export cannot follow.
var ErrChanged = errors.New("it changed while the store was exported: try again")

// ExportOptions are the options of [Export]. The zero value exports everything.
type ExportOptions struct {
	Account   string    // the name of the only account, "" for all
	NoHistory bool      // leaves the entries of the histories out
	Since     time.Time // earlier entries of the histories are left out
	Source    string    // the program and store, for the header
	Progress  func(Progress)

	incomplete      bool // exports Account although its import has not finished
	page, entryPage int  // resources and entries on a page; small in tests
}

// Progress says how far a pass over an archive has come.
type Progress struct {
	Pass    string // export, check, write or compare
	Account string // the name of the account
	Records int64  // of all accounts
}

// The defaults of [ExportOptions].
const (
	defaultPage      = 250
	defaultEntryPage = 1000
)

// Export writes an archive of a store. The same store gives the same lines, but for the header. Accounts whose import has not
// finished are left out: their records are in the file of the import.
//
// Each resource and each counter is as of one moment of the call. To export a store that is in use as of one instant, give
// Export a snapshot of the store.
func Export(ctx context.Context, s core.Importer, w io.Writer, o ExportOptions) (Counts, error) {
	a, err := NewWriter(w, o.Source, time.Now())
	if err == nil {
		err = exportTo(ctx, s, o, a)
	}
	if err != nil {
		return nil, err
	}
	return a.count, a.Close()
}

// exportTo gives the records of a store to a sink.
func exportTo(ctx context.Context, s core.Importer, o ExportOptions, to Sink) error {
	o.page, o.entryPage = cmp.Or(o.page, defaultPage), cmp.Or(o.entryPage, defaultEntryPage)
	e := &export{s: s, o: o, to: to}
	if o.Account != "" {
		a, err := s.AccountByName(ctx, o.Account)
		if err != nil {
			return fmt.Errorf("account %q: %w", o.Account, err)
		}
		if isIncomplete(a) && !o.incomplete {
			return fmt.Errorf("account %q is incomplete: its import has not finished", o.Account)
		}
		return e.account(ctx, a)
	}
	return eachOf(ctx, o.page, func(p core.Page) ([]*core.Account, int, error) { return s.Accounts(ctx, p) }, nil,
		func(as []*core.Account) error {
			for _, a := range as {
				if isIncomplete(a) {
					continue
				}
				if err := e.account(ctx, a); err != nil {
					return err
				}
			}
			return nil
		})
}

// isIncomplete reports whether an account lacks records, because its import has not finished.
func isIncomplete(a *core.Account) bool { return a.Import != nil && !a.Import.Complete }

// export is the state of an export.
type export struct {
	s       core.Importer
	o       ExportOptions
	to      Sink
	records int64

	// Of the present account. A store that serves changes during the export. Resources with a number above last are left out.
	// The anchors of the exported user give the windows of its counters.
	name  string
	last  core.Numbers
	plans map[string]bool
	users map[int64]core.Anchors  // of the exported users that have some: few
	keys  map[string]core.Anchors // of the keys of these users
}

// record gives a record to the sink.
func (e *export) record(ctx context.Context, kind Kind, rec any) error {
	if err := e.to.Put(ctx, Record{Kind: kind, Value: rec}); err != nil {
		return err
	}
	e.records++
	if e.o.Progress != nil {
		e.o.Progress(Progress{"export", e.name, e.records})
	}
	return nil
}

// account exports an account with its records.
func (e *export) account(ctx context.Context, a *core.Account) error {
	e.name = a.Name
	e.plans, e.users, e.keys = map[string]bool{}, map[int64]core.Anchors{}, map[string]core.Anchors{}
	var err error
	if e.last, err = e.s.LastNumbers(ctx, a.ID); err != nil {
		return err
	}
	whole := *a
	whole.Import = nil
	if err := e.record(ctx, KindAccount, &Account{whole, e.last}); err != nil {
		return err
	}
	for _, section := range []func(context.Context, string) error{e.ownerKeys, e.access, e.putPlans, e.putUsers, e.putKeys, e.usage} {
		if err := section(ctx, a.ID); err != nil {
			return err
		}
	}
	if e.o.NoHistory {
		return nil
	}
	return e.events(ctx, a.ID)
}

func (e *export) ownerKeys(ctx context.Context, account string) error {
	l := func(p core.Page) ([]*core.OwnerKey, int, error) { return e.s.OwnerKeys(ctx, account, p) }
	return eachOf(ctx, e.o.page, l, nil, func(keys []*core.OwnerKey) error {
		for _, k := range keys {
			if err := e.record(ctx, KindOwnerKey, k); err != nil {
				return err
			}
		}
		return nil
	})
}

func (e *export) access(ctx context.Context, account string) error {
	a, err := e.s.Access(ctx, account)
	if err != nil || a.Password == "" && len(a.Links)+len(a.Sessions)+len(a.Browsers) == 0 {
		return err
	}
	return e.record(ctx, KindAccess, &Access{account, *a})
}

func (e *export) putPlans(ctx context.Context, account string) error {
	l := func(p core.Page) ([]*core.Plan, int, error) { return e.s.Plans(ctx, account, p) }
	return eachOf(ctx, e.o.page, l, func(p *core.Plan) int64 { return p.Seq }, func(plans []*core.Plan) error {
		for _, p := range plans {
			if p.Seq > e.last.Plan {
				continue
			}
			e.plans[p.ID] = true
			if err := e.record(ctx, KindPlan, p); err != nil {
				return err
			}
		}
		return nil
	})
}

func (e *export) putUsers(ctx context.Context, account string) error {
	return eachOf(ctx, e.o.page, e.usersOf(ctx, account), idOfUser, func(users []*core.User) error {
		for _, u := range users {
			if u.ID > e.last.User {
				continue
			}
			if len(u.Anchors) > 0 {
				e.users[u.ID] = u.Anchors
			}
			if u.PlanID != "" && !e.plans[u.PlanID] {
				return fmt.Errorf("the plan of user %d: %w", u.ID, ErrChanged)
			}
			if err := e.record(ctx, KindUser, u); err != nil {
				return err
			}
		}
		return nil
	})
}

func (e *export) usersOf(ctx context.Context, account string) list[*core.User] {
	return func(p core.Page) ([]*core.User, int, error) { return e.s.Users(ctx, account, core.UserFilter{}, p) }
}

func idOfUser(u *core.User) int64 { return u.ID }
func seqOfKey(k *core.Key) int64  { return k.Seq }

func (e *export) putKeys(ctx context.Context, account string) error {
	return eachOf(ctx, e.o.page, e.keysOf(ctx, account), seqOfKey, func(keys []*core.Key) error {
		for _, k := range keys {
			if k.Seq > e.last.Key {
				continue
			}
			if k.UserID > e.last.User || k.PlanID != "" && !e.plans[k.PlanID] {
				return fmt.Errorf("the user or the plan of key %s: %w", k.ID, ErrChanged)
			}
			if anchors := e.users[k.UserID]; anchors != nil {
				e.keys[k.ID] = anchors
			}
			if err := e.record(ctx, KindKey, k); err != nil {
				return err
			}
		}
		return nil
	})
}

func (e *export) keysOf(ctx context.Context, account string) list[*core.Key] {
	return func(p core.Page) ([]*core.Key, int, error) { return e.s.Keys(ctx, account, core.KeyFilter{}, p) }
}

// usage exports the counters of the users, and then of the keys, each followed by its days.
func (e *export) usage(ctx context.Context, account string) error {
	return e.eachOwner(ctx, account, func(ids []core.CounterID, anchors []core.Anchors) error {
		counters, err := e.s.Counters(ctx, ids)
		if err != nil {
			return err
		}
		days := make([][]core.CounterDay, len(ids))
		err = parallel(ctx, len(ids), func(ctx context.Context, i int) (err error) {
			days[i], err = e.s.CounterDays(ctx, ids[i])
			return err
		})
		if err != nil {
			return err
		}
		for i, id := range ids {
			if !counters[i].Same(&core.Counter{}) {
				if err := e.record(ctx, KindCounter, newCounter(id, &counters[i], anchors[i])); err != nil {
					return err
				}
			}
			for _, d := range untilCounter(days[i], id, &counters[i]) {
				if err := e.record(ctx, KindDay, &Day{ownerOf(id), d}); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

// untilCounter returns the days without the requests that were counted after the counter was read.
func untilCounter(days []core.CounterDay, of core.CounterID, c *core.Counter) []core.CounterDay {
	date := core.DateOf(time.Unix(c.At, 0))
	for i := range days {
		d := &days[i]
		allowed := &d.Allowed
		if of.KeyID == "" {
			allowed = &d.Shared.Allowed
		}
		switch {
		case d.Date > date:
			*allowed = 0
		case d.Date == date:
			*allowed = c.Today
		}
	}
	return slices.DeleteFunc(days, func(d core.CounterDay) bool { return d == core.CounterDay{Date: d.Date} })
}

// events exports the histories of the users, and then of the keys, the oldest entry first.
func (e *export) events(ctx context.Context, account string) error {
	return e.eachOwner(ctx, account, func(ids []core.CounterID, _ []core.Anchors) error {
		for some := range slices.Chunk(ids, workers) {
			if err := e.histories(ctx, some); err != nil {
				return err
			}
		}
		return nil
	})
}

// histories exports some histories. Most have one page: these pages are read in parallel.
func (e *export) histories(ctx context.Context, ids []core.CounterID) error {
	pages, totals := make([][]core.Entry, len(ids)), make([]int, len(ids))
	err := parallel(ctx, len(ids), func(ctx context.Context, i int) (err error) {
		pages[i], totals[i], err = e.s.History(ctx, ids[i], e.o.Since, core.Page{Number: 1, Size: e.o.entryPage})
		return err
	})
	for i, id := range ids {
		switch {
		case err != nil:
			return err
		case totals[i] <= len(pages[i]):
			err = e.entries(ctx, id, pages[i])
		case capOf(e.s) > 0:
			pages[i], _, err = e.s.History(ctx, id, e.o.Since, core.Page{Number: 1, Size: capOf(e.s)})
			if err == nil {
				err = e.entries(ctx, id, pages[i])
			}
		default:
			err = e.pages(ctx, id, totals[i])
		}
	}
	return err
}

// entries exports entries of a history, which are sorted from the newest to the oldest.
func (e *export) entries(ctx context.Context, of core.CounterID, entries []core.Entry) error {
	for _, entry := range slices.Backward(entries) {
		if err := e.record(ctx, KindEvent, newEvent(of, entry)); err != nil {
			return err
		}
	}
	return nil
}

// pages exports a history page by page, the oldest page first. The history must not change meanwhile.
func (e *export) pages(ctx context.Context, of core.CounterID, total int) error {
	for number := (total + e.o.entryPage - 1) / e.o.entryPage; number > 0; number-- {
		page, now, err := e.s.History(ctx, of, e.o.Since, core.Page{Number: number, Size: e.o.entryPage})
		if err == nil && now != total {
			err = ErrChanged
		}
		if err == nil {
			err = e.entries(ctx, of, page)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// eachOwner calls fn with pages of the ids of the exported users and then of the exported keys, with their anchors.
func (e *export) eachOwner(ctx context.Context, account string, fn func(ids []core.CounterID, anchors []core.Anchors) error) error {
	var ids []core.CounterID
	var anchors []core.Anchors
	flush := func() error {
		defer func() { ids, anchors = nil, nil }()
		if len(ids) == 0 {
			return nil
		}
		return fn(ids, anchors)
	}
	err := eachOf(ctx, e.o.page, e.usersOf(ctx, account), idOfUser, func(users []*core.User) error {
		for _, u := range users {
			if u.ID <= e.last.User {
				ids, anchors = append(ids, core.CounterID{Account: account, UserID: u.ID}), append(anchors, e.users[u.ID])
			}
		}
		return flush()
	})
	if err != nil {
		return err
	}
	return eachOf(ctx, e.o.page, e.keysOf(ctx, account), seqOfKey, func(keys []*core.Key) error {
		for _, k := range keys {
			if k.Seq <= e.last.Key {
				ids, anchors = append(ids, core.CounterID{Account: account, KeyID: k.ID}), append(anchors, e.keys[k.ID])
			}
		}
		return flush()
	})
}

// capOf returns the maximum number of entries of a history in a store, 0 for no bound.
func capOf(s core.Store) int {
	if c, ok := s.(core.CappedHistory); ok {
		return max(0, c.HistoryCap())
	}
	return 0
}

// list returns a page of a list, and the total of it.
type list[T any] func(core.Page) ([]T, int, error)

// eachOf calls fn with the pages of a list. number returns what the list is sorted by; it is nil for a list from which
// nothing is deleted. When items are deleted while the list is read, the later items move to the front. eachOf then goes
// back, and calls fn with each item once.
func eachOf[T any](ctx context.Context, size int, l list[*T], number func(*T) int64, fn func([]*T) error) error {
	var last int64 // the number of the last item that fn got
	for p := (core.Page{Number: 1, Size: size}); ; {
		if err := ctx.Err(); err != nil {
			return err
		}
		items, _, err := l(p)
		if err != nil {
			return err
		}
		if number != nil && p.Number > 1 {
			before, _, err := l(core.Page{Number: (p.Number - 1) * size, Size: 1}) // the item in front of the page
			if err != nil {
				return err
			}
			if len(before) == 0 || number(before[0]) > last {
				p.Number--
				continue
			}
		}
		full := len(items) == size
		if number != nil {
			items = slices.DeleteFunc(items, func(item *T) bool { return number(item) <= last })
		}
		if len(items) > 0 {
			if number != nil {
				last = number(items[len(items)-1])
			}
			if err := fn(items); err != nil {
				return err
			}
		}
		if !full {
			return nil
		}
		p.Number++
	}
}
