package archive

import (
	"cmp"
	"context"
	"fmt"
	"hash/maphash"
	"io"
	"slices"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
)

// ExportOptions are the options of [Export]. The zero value exports everything.
type ExportOptions struct {
	Account   string    // the name of the only account, "" for all
	NoHistory bool      // leaves the entries of the histories out
	Since     time.Time // earlier entries of the histories are left out
	Source    string    // the program and store, for the header
	Progress  func(Progress)

	page, entryPage int // resources and entries on a page; small in tests
	held            int // records that an account may hold back; small in tests
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
	defaultHeld      = 20_000 // about 20 MB
)

// Export writes an archive of a store. The same store gives the same lines, but for the header. Export writes nothing and
// returns [IncompleteError] for accounts whose import has not finished: an archive without them is no backup of the store.
//
// A [core.LiveStore] may be in use: each counter with its days, and each history, is as of one instant of its own. A resource that
// exists during the whole call is in the archive, which can be imported. Give Export a snapshot of any other store that is in use.
func Export(ctx context.Context, s core.Importer, w io.Writer, o ExportOptions) (Counts, error) {
	err := checkComplete(ctx, s, o)
	if err != nil {
		return nil, err
	}
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
	o.held = cmp.Or(o.held, defaultHeld)
	e := &export{s: s, cap: capOf(s), o: o, to: to}
	if s, ok := s.(core.LiveStore); ok {
		e.live = &live{LiveStore: s, earlier: map[uint64]struct{}{}, seed: maphash.MakeSeed()}
	}
	if o.Account != "" {
		a, err := s.AccountByName(ctx, o.Account)
		if err != nil {
			return fmt.Errorf("account %q: %w", o.Account, err)
		}
		return e.account(ctx, a)
	}
	return eachOf(ctx, o.page, func(p core.Page) ([]*core.Account, int, error) { return s.Accounts(ctx, p) }, func(a *core.Account) error {
		if a.Incomplete() { // the import has begun after checkComplete
			return nil
		}
		return e.account(ctx, a)
	})
}

// checkComplete returns [IncompleteError] if the import of an account to export has not finished.
func checkComplete(ctx context.Context, s core.Importer, o ExportOptions) error {
	var names []string
	err := eachOf(ctx, defaultPage, func(p core.Page) ([]*core.Account, int, error) { return s.Accounts(ctx, p) }, func(a *core.Account) error {
		if a.Incomplete() && (o.Account == "" || o.Account == a.Name) {
			names = append(names, a.Name)
		}
		return nil
	})
	return cmp.Or(err, IncompleteError(names))
}

type export struct {
	s       core.Importer
	live    *live // nil for a store that stays as it is
	cap     int   // maximum number of entries of a history, 0 for no bound
	o       ExportOptions
	to      Sink
	records int64

	// Of the present account. The anchors of the exported user give the windows of its counters.
	name  string
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

// portable returns an account as an archive has it. For a prefix that core refuses, from an earlier version, it accepts keys of any form:
// an account cannot lose a prefix.
func portable(a core.Account) core.Account {
	a.Import = nil
	refused := func(prefix string) bool { return core.CheckKeyPrefix(prefix) != nil }
	if slices.ContainsFunc(a.KeyPrefixes, refused) {
		a.KeyPrefixes, a.AnyKeyForm = slices.DeleteFunc(slices.Clone(a.KeyPrefixes), refused), true
		if refused(a.KeyPrefix) {
			a.KeyPrefix = ""
		}
	}
	return a
}

func (e *export) account(ctx context.Context, a *core.Account) error {
	e.name = a.Name
	if err := e.wholeResources(ctx, a); err != nil {
		return err
	}
	if err := e.usage(ctx, a.ID); err != nil || e.o.NoHistory {
		return err
	}
	return e.events(ctx, a.ID)
}

func (e *export) resources(ctx context.Context, a *core.Account) error {
	e.users, e.keys = map[int64]core.Anchors{}, map[string]core.Anchors{}
	last, err := e.s.LastNumbers(ctx, a.ID)
	if err != nil {
		return err
	}
	e.live.begin(last)
	if err := e.record(ctx, KindAccount, &Account{portable(*a), last}); err != nil {
		return err
	}
	for _, section := range []func(context.Context, string) error{e.ownerKeys, e.access, e.putPlans, e.putUsers, e.putKeys} {
		if err := section(ctx, a.ID); err != nil {
			return err
		}
	}
	return nil
}

func (e *export) ownerKeys(ctx context.Context, account string) error {
	list := func(p core.Page) ([]*core.OwnerKey, int, error) { return e.s.OwnerKeys(ctx, account, p) }
	return eachOf(ctx, e.o.page, list, func(k *core.OwnerKey) error { return e.record(ctx, KindOwnerKey, k) })
}

func (e *export) access(ctx context.Context, account string) error {
	a, err := e.s.Access(ctx, account)
	if err != nil || a.Password == "" && len(a.Links)+len(a.Sessions)+len(a.Browsers) == 0 {
		return err
	}
	return e.record(ctx, KindAccess, &Access{account, *a})
}

func (e *export) putPlans(ctx context.Context, account string) error {
	return e.eachPlan(ctx, account, func(p *core.Plan) error {
		e.live.addPlan(p)
		return e.record(ctx, KindPlan, p)
	})
}

func (e *export) putUsers(ctx context.Context, account string) error {
	return e.eachUser(ctx, account, func(u *core.User) error {
		if err := e.live.addUser(u); err != nil {
			return err
		}
		if len(u.Anchors) > 0 {
			e.users[u.ID] = u.Anchors
		}
		return e.record(ctx, KindUser, u)
	})
}

func (e *export) putKeys(ctx context.Context, account string) error {
	return e.eachKey(ctx, account, func(k *core.Key) error {
		added, err := e.live.addKey(k)
		if err != nil || !added {
			return err
		}
		if anchors := e.users[k.UserID]; anchors != nil {
			e.keys[k.ID] = anchors
		}
		return e.record(ctx, KindKey, k)
	})
}

// usage exports the counters of the users, and then of the keys, each followed by its days.
func (e *export) usage(ctx context.Context, account string) error {
	return e.eachOwner(ctx, account, func(ids []core.CounterID, anchors []core.Anchors) error {
		counters, days, err := e.countersWithDays(ctx, ids)
		if err != nil {
			return err
		}
		for i, id := range ids {
			if !counters[i].Same(&core.Counter{}) {
				if err := e.record(ctx, KindCounter, newCounter(id, &counters[i], anchors[i])); err != nil {
					return err
				}
			}
			for _, d := range days[i] {
				if err := e.record(ctx, KindDay, &Day{ownerOf(id), d}); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

func (e *export) countersWithDays(ctx context.Context, ids []core.CounterID) ([]core.Counter, [][]core.CounterDay, error) {
	if e.live != nil {
		return e.live.CountersWithDays(ctx, ids)
	}
	counters, err := e.s.Counters(ctx, ids)
	if err != nil {
		return nil, nil, err
	}
	days := make([][]core.CounterDay, len(ids))
	err = parallel(ctx, len(ids), func(ctx context.Context, i int) (err error) {
		days[i], err = e.s.CounterDays(ctx, ids[i])
		return err
	})
	return counters, days, err
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

// pages exports a history page by page, the oldest page first.
func (e *export) pages(ctx context.Context, of core.CounterID, total int) error {
	size := e.o.entryPage
	if e.cap > 0 { // new entries may come, and the oldest may be dropped, meanwhile: one page has all
		size, total = e.cap, e.cap
	}
	for number := (total + size - 1) / size; number > 0; number-- {
		page, _, err := e.s.History(ctx, of, e.o.Since, core.Page{Number: number, Size: size})
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
	add := func(id core.CounterID, of core.Anchors) error {
		if ids, anchors = append(ids, id), append(anchors, of); len(ids) < e.o.page {
			return nil
		}
		defer func() { ids, anchors = nil, nil }()
		return fn(ids, anchors)
	}
	err := e.eachUser(ctx, account, func(u *core.User) error {
		if !e.live.hasUser(u) {
			return nil
		}
		return add(core.CounterID{Account: account, UserID: u.ID}, e.users[u.ID])
	})
	if err == nil {
		err = e.eachKey(ctx, account, func(k *core.Key) error {
			if !e.live.hasKey(k) {
				return nil
			}
			return add(core.CounterID{Account: account, KeyID: k.ID}, e.keys[k.ID])
		})
	}
	if err != nil || len(ids) == 0 {
		return err
	}
	return fn(ids, anchors)
}

// capOf returns the maximum number of entries of a history in a store, 0 for no bound.
func capOf(s core.Store) int {
	if c, ok := s.(core.CappedHistory); ok {
		return max(0, c.HistoryCap())
	}
	return 0
}
