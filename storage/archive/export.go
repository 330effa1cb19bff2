package archive

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/limitkeeper/limitkeeper/core"
)

// ExportOptions are the options of [Export]. The zero value exports everything.
type ExportOptions struct {
	Account   string // the name of the only account, "" for all
	NoHistory bool   // leaves the entries of the histories out
	Progress  func(Progress)

	page, entryPage int // resources and entries on a page; small in tests
	held            int // records that an account may hold back; small in tests

	compares bool // the export is compared with the imported archive
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
// returns [IncompleteError] for accounts whose import has not finished: an archive without them is no backup of the store. After
// an error the counts are nil if nothing was written.
//
// A [core.LiveStore] may be in use: each counter with its days, and each history, is as of one instant of its own. A resource that
// exists during the whole call is in the archive, which can be imported. Give Export a snapshot of any other store that is in use.
func Export(ctx context.Context, s core.Importer, w io.Writer, o ExportOptions) (Counts, error) {
	accounts, err := accountsOf(ctx, s, o.Account)
	if err != nil {
		return nil, err
	}
	a, err := NewWriter(w, time.Now())
	if err == nil {
		err = exportTo(ctx, s, accounts, o, a)
	}
	if err == nil {
		err = a.Close()
	}
	return a.count, err
}

// accountsOf returns the accounts of a store, or the one with the name only, "" for all. It returns an [IncompleteError] if
// the import of one of them has not finished. It leaves out accounts that are being deleted.
func accountsOf(ctx context.Context, s core.Importer, only string) (accounts []*core.Account, err error) {
	var incomplete []string
	list := func(p core.Page) ([]*core.Account, int, error) { return s.Accounts(ctx, p) }
	err = core.Each(ctx, defaultPage, list, func(a *core.Account) error {
		if a.Deleting || only != "" && only != a.Name {
			return nil
		}
		if accounts = append(accounts, a); a.Incomplete() {
			incomplete = append(incomplete, a.Name)
		}
		return nil
	})
	if err == nil && only != "" && len(accounts) == 0 {
		err = fmt.Errorf("account %q: %w", only, core.ErrAccountNotFound)
	}
	return accounts, cmp.Or(err, IncompleteError(incomplete))
}

// exportTo gives the records of some accounts of a store to a sink.
func exportTo(ctx context.Context, s core.Importer, accounts []*core.Account, o ExportOptions, to Sink) error {
	o.page, o.entryPage = cmp.Or(o.page, defaultPage), cmp.Or(o.entryPage, defaultEntryPage)
	o.held = cmp.Or(o.held, defaultHeld)
	e := &export{s: s, cap: capOf(s), o: o, to: to, earlier: map[uint64]struct{}{}, seed: maphash.MakeSeed()}
	e.live, _ = s.(core.LiveStore)
	for _, a := range accounts {
		if err := e.account(ctx, a); err != nil {
			return err
		}
	}
	return nil
}

type export struct {
	s       core.Importer
	live    core.LiveStore // nil for a store that stays as it is
	cap     int            // maximum number of entries of a history, 0 for no bound
	o       ExportOptions
	to      Sink
	records int64
	earlier map[uint64]struct{} // see [live]
	seed    maphash.Seed

	of      *core.Account    // the present account
	last    core.Numbers     // the largest numbers when the export of the account began
	owners  []core.CounterID // the exported users, and then the exported keys: about 64 bytes for each key
	anchors anchors
}

// record gives a record to the sink, and notes users and keys.
func (e *export) record(ctx context.Context, kind Kind, rec any) error {
	err := e.to.Put(ctx, Record{Kind: kind, Value: rec})
	if err == errLeftOut {
		return nil
	}
	if err != nil {
		return err
	}
	switch v := rec.(type) {
	case *core.User:
		e.owners = append(e.owners, core.CounterID{Account: e.of.ID, UserID: v.ID})
	case *core.Key:
		e.owners = append(e.owners, core.CounterID{Account: e.of.ID, KeyID: v.ID})
	}
	e.anchors.add(rec)
	e.records++
	if e.o.Progress != nil {
		e.o.Progress(Progress{"export", e.of.Name, e.records})
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
	e.of = a
	if err := e.wholeResources(ctx, a); err != nil {
		return err
	}
	if err := e.usage(ctx); err != nil {
		return err
	}
	if err := e.auditLog(ctx); err != nil { // before the histories: badgerstore bounds its log from the first history on
		return err
	}
	for ids := range slices.Chunk(e.owners, workers) {
		if e.o.NoHistory {
			break
		}
		if err := e.histories(ctx, ids); err != nil {
			return err
		}
	}
	return e.checkStays(ctx)
}

// checkStays returns an error if the account was deleted during its export: the archive lacks records.
func (e *export) checkStays(ctx context.Context) error {
	if e.live == nil {
		return nil
	}
	a, err := e.s.Account(ctx, e.of.ID)
	if err == nil && a.Deleting {
		err = core.ErrAccountNotFound
	}
	if errors.Is(err, core.ErrAccountNotFound) {
		err = fmt.Errorf("the account %q was deleted meanwhile: run the command again: %w", e.of.Name, err)
	}
	return err
}

func (e *export) resources(ctx context.Context, a *core.Account) error {
	e.owners, e.anchors = nil, anchors{}
	var err error
	if e.last, err = e.s.LastNumbers(ctx, a.ID); err != nil {
		return err
	}
	if err := e.record(ctx, KindAccount, &Account{portable(*a), e.last}); err != nil {
		return err
	}
	for _, section := range []func(context.Context, string) error{e.ownerKeys, e.access, e.prices, e.webhooks, e.webhookEvents, e.putPlans, e.putUsers, e.putKeys} {
		if err := section(ctx, a.ID); err != nil {
			return err
		}
	}
	return nil
}

func (e *export) ownerKeys(ctx context.Context, account string) error {
	list := func(p core.Page) ([]*core.OwnerKey, int, error) { return e.s.OwnerKeys(ctx, account, p) }
	return core.Each(ctx, e.o.page, list, func(k *core.OwnerKey) error { return e.record(ctx, KindOwnerKey, k) })
}

func (e *export) access(ctx context.Context, account string) error {
	a, err := e.s.Access(ctx, account)
	if err != nil || a.Password == "" && len(a.Links)+len(a.People)+len(a.Sessions)+len(a.Browsers) == 0 {
		return err
	}
	return e.record(ctx, KindAccess, &Access{account, *a})
}

func (e *export) prices(ctx context.Context, account string) error {
	p, err := e.s.Prices(ctx, account)
	if err != nil || len(p.Rules) == 0 && p.UpdatedAt.IsZero() {
		return err
	}
	p.Former = nil // for open holds, which an archive does not have
	return e.record(ctx, KindPrices, &Prices{account, *p})
}

func (e *export) webhooks(ctx context.Context, account string) error {
	list := func(p core.Page) ([]*core.Webhook, int, error) { return e.s.Webhooks(ctx, account, p) }
	return core.Each(ctx, e.o.page, list, func(w *core.Webhook) error { return e.record(ctx, KindWebhook, w) })
}

// webhookEvents exports the events that wait for webhooks or are remembered. The delivery logs are not exported.
func (e *export) webhookEvents(ctx context.Context, account string) error {
	for after := int64(0); ; {
		list, _, err := e.s.Events(ctx, account, core.EventFilter{}, after, e.o.page)
		if err != nil || len(list) == 0 {
			return err
		}
		for _, ev := range list {
			if err := e.record(ctx, KindWebhookEvent, &WebhookEvent{account, *ev}); err != nil {
				return err
			}
			after = ev.Seq
		}
	}
}

func (e *export) putPlans(ctx context.Context, account string) error {
	list := func(p core.Page) ([]*core.Plan, int, error) { return e.s.Plans(ctx, account, p) }
	number := func(p *core.Plan) int64 { return p.Seq }
	return exportKind(ctx, e, KindPlan, account, list, core.LiveStore.PlansAfter, number, e.last.Plan)
}

func (e *export) putUsers(ctx context.Context, account string) error {
	list := func(p core.Page) ([]*core.User, int, error) { return e.s.Users(ctx, account, core.UserFilter{}, p) }
	number := func(u *core.User) int64 { return u.ID }
	return exportKind(ctx, e, KindUser, account, list, core.LiveStore.UsersAfter, number, e.last.User)
}

func (e *export) putKeys(ctx context.Context, account string) error {
	list := func(p core.Page) ([]*core.Key, int, error) { return e.s.Keys(ctx, account, core.KeyFilter{}, p) }
	number := func(k *core.Key) int64 { return k.Seq }
	return exportKind(ctx, e, KindKey, account, list, core.LiveStore.KeysAfter, number, e.last.Key)
}

// usage exports the days of the deleted users, and then the counters of the users and of the keys, each followed by its days.
func (e *export) usage(ctx context.Context) error {
	deleted := core.CounterID{Account: e.of.ID}
	days, err := e.s.CounterDays(ctx, deleted)
	if err != nil {
		return err
	}
	if err := e.days(ctx, deleted, days); err != nil {
		return err
	}
	for ids := range slices.Chunk(e.owners, e.o.page) {
		counters, days, err := e.countersWithDays(ctx, ids)
		if err != nil {
			return err
		}
		for i, id := range ids {
			if !counters[i].Same(&core.Counter{}) {
				if err := e.record(ctx, KindCounter, newCounter(id, &counters[i], e.anchors[id])); err != nil {
					return err
				}
			}
			if err := e.days(ctx, id, days[i]); err != nil {
				return err
			}
		}
	}
	return nil
}

func (e *export) days(ctx context.Context, id core.CounterID, days []core.CounterDay) error {
	for _, d := range days {
		if err := e.record(ctx, KindDay, &Day{id, d}); err != nil {
			return err
		}
	}
	return nil
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

// histories exports some histories, the oldest entry first. Most have one page: these pages are read in parallel.
func (e *export) histories(ctx context.Context, ids []core.CounterID) error {
	pages, totals := make([][]core.Entry, len(ids)), make([]int, len(ids))
	err := parallel(ctx, len(ids), func(ctx context.Context, i int) (err error) {
		pages[i], totals[i], err = e.s.History(ctx, ids[i], time.Time{}, core.Page{Number: 1, Size: e.o.entryPage})
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
		page, _, err := e.s.History(ctx, of, time.Time{}, core.Page{Number: number, Size: size})
		if err == nil {
			err = e.entries(ctx, of, page)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// capOf returns the maximum number of entries of a history in a store, 0 for no bound.
func capOf(s core.Store) int {
	if c, ok := s.(core.CappedHistory); ok {
		return max(0, c.HistoryCap())
	}
	return 0
}

// workers is the number of calls to a store that run in parallel. On Redis each call waits for the network.
const workers = 16

// parallel calls fn with the numbers from 0 to n-1, in several goroutines. It returns the first error, which cancels the
// other calls.
func parallel(ctx context.Context, n int, fn func(ctx context.Context, i int) error) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(workers)
	for i := range n {
		g.Go(func() error { return fn(ctx, i) })
	}
	return g.Wait()
}
