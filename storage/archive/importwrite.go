package archive

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"golang.org/x/sync/errgroup"

	"github.com/limitkeeper/limitkeeper/core"
)

// writing is the sink of the second pass: it writes the records to the target.
type writing struct {
	to     core.Importer
	o      ImportOptions
	mark   core.AccountImport // of the accounts that this run writes
	digest *digest            // of the written records

	again    bool       // writes nothing: the accounts are complete, and are compared
	accounts []*Account // that are written, or compared again
	account  *Account   // the present one; nil while the records of a complete account are skipped
	created  bool
	anchors  anchors

	batch   []Record                       // records of one kind, which are written in one call
	of      core.CounterID                 // the owner of the days or events in the batch
	audited bool                           // putAudit has removed the entries of an interrupted import
	numbers map[string]*core.AccountImport // the numbers of records, by account
	appends bool                           // the history of the batch has entries already
	group   *errgroup.Group
}

// Put implements [Sink].
func (w *writing) Put(ctx context.Context, r Record) error {
	if r.Err != nil {
		return fmt.Errorf("%w: line %d: %w", ErrDamaged, r.Line, r.Err)
	}
	if a, ok := r.Value.(*Account); ok {
		if err := w.begin(ctx, a); err != nil {
			return err
		}
	}
	if w.account != nil || w.again {
		w.digest.add(r.Kind, r.line)
	}
	if w.account == nil || r.Kind == KindAccount {
		return nil
	}
	w.countRecord(r.Kind)
	if len(w.batch) > 0 && section(w.batch[0].Kind) != section(r.Kind) {
		if err := w.flush(ctx, false); err != nil {
			return err
		}
	}
	of, full, more := core.CounterID{}, len(w.batch) >= w.o.page, false
	switch v := r.Value.(type) {
	case *core.OwnerKey:
		return w.putOwnerKey(ctx, v)
	case *Access:
		_, err := w.to.UpdateAccess(ctx, v.AccountID, func(a *core.Access) error {
			*a = v.Access
			return nil
		})
		return err
	case *core.User, *core.Key:
		w.anchors.add(v)
	case *Counter:
		of = v.CounterID
	case *Day: // a batch has all days of each of its owners
		of = v.CounterID
		full = full && of != w.of
	case *Event: // a batch has events of one history
		of = v.owner()
		more = of == w.of
		full = len(w.batch) > 0 && !more || len(w.batch) >= w.o.entryPage
	}
	if full {
		if err := w.flush(ctx, more); err != nil {
			return err
		}
	}
	w.of, w.batch = of, append(w.batch, r)
	return nil
}

// begin begins the next account. The account is created with its first owner's key.
func (w *writing) begin(ctx context.Context, a *Account) error {
	if err := w.end(ctx); err != nil {
		return err
	}
	had, err := w.to.Account(ctx, a.ID)
	if err != nil && !errors.Is(err, core.ErrAccountNotFound) {
		return err
	}
	if had != nil && had.Import != nil && had.Import.Complete {
		if w.account = nil; w.again {
			w.accounts = append(w.accounts, a)
		}
		return nil
	}
	w.account, w.created, w.audited, w.anchors = a, false, false, anchors{}
	w.accounts = append(w.accounts, a)
	w.group = new(errgroup.Group)
	w.group.SetLimit(workers)
	return nil
}

// countRecord counts a record of the account, for the entry account.import in the audit log.
func (w *writing) countRecord(k Kind) {
	if w.numbers == nil {
		w.numbers = map[string]*core.AccountImport{}
	}
	n := w.numbers[w.account.ID]
	if n == nil {
		n = &core.AccountImport{}
		w.numbers[w.account.ID] = n
	}
	switch k {
	case KindPlan:
		n.Plans++
	case KindUser:
		n.Users++
	case KindKey:
		n.Keys++
	case KindEvent:
		n.Events++
	}
}

// end writes the last batch of the account, and raises its numbers.
func (w *writing) end(ctx context.Context) error {
	if w.account == nil {
		return nil
	}
	if err := errors.Join(w.flush(ctx, false), w.group.Wait()); err != nil {
		return err
	}
	return w.to.RaiseNumbers(ctx, w.account.ID, w.account.Last)
}

// putOwnerKey creates an owner's key, and with the first one the account. A repeated import finds both.
func (w *writing) putOwnerKey(ctx context.Context, k *core.OwnerKey) error {
	first := !w.created
	w.created = true
	if first {
		a := w.account.Account
		a.Import = &w.mark
		err := w.to.CreateAccount(ctx, &a, k)
		if !errors.Is(err, core.ErrAccountExists) {
			return err
		}
		_, err = w.to.UpdateAccount(ctx, a.ID, func(had *core.Account) error {
			switch {
			case had.ID != a.ID || had.Import == nil || had.Import.SHA256 != w.mark.SHA256:
				return fmt.Errorf("%w: the store has another account %q", ErrRefused, a.Name)
			case had.Import.Complete:
				return ErrTakenOver
			}
			*had = a
			return nil
		})
		if err != nil {
			return err
		}
	}
	err := w.to.CreateOwnerKey(ctx, k)
	if !errors.Is(err, core.ErrOwnerKeyExists) {
		return err
	}
	_, err = w.to.UpdateOwnerKey(ctx, k.AccountID, k.ID, func(had *core.OwnerKey) error {
		*had = *k
		return nil
	})
	return err
}

// owns reports whether no later run of the import writes an account.
func (w *writing) owns(a *core.Account) bool { return a.Import != nil && *a.Import == w.mark }

// flush writes the batch. With more, the next batch has more entries of the same history.
func (w *writing) flush(ctx context.Context, more bool) error {
	batch := w.batch
	w.batch = nil
	if len(batch) == 0 {
		return nil
	}
	appends := w.appends
	w.appends = more
	if a, err := w.to.Account(ctx, w.account.ID); err != nil || !w.owns(a) {
		return cmp.Or(err, ErrTakenOver)
	}
	switch batch[0].Kind {
	case KindCounter, KindDay:
		return w.usage(ctx, batch)
	case KindEvent:
		id, entries := w.of, make([]core.Entry, len(batch))
		for i, r := range batch {
			entries[i] = r.Value.(*Event).Entry
		}
		keep := w.o.Retention + margin
		switch {
		case appends:
			return w.to.AppendHistory(ctx, id, entries, keep)
		case more:
			return w.to.SetHistory(ctx, id, entries, keep)
		}
		w.group.Go(func() error { return w.to.SetHistory(ctx, id, entries, keep) })
		return nil
	case KindAudit:
		return w.putAudit(ctx, batch)
	}
	return w.to.Update(ctx, w.account.ID, func(tx core.Tx) error { return putAll(tx, batch) })
}

// putAll puts records of one kind with their numbers: prices, webhooks, events, plans, users or keys.
func putAll(tx core.Tx, batch []Record) error {
	for _, r := range batch {
		var err error
		switch v := r.Value.(type) { // the store may write into a resource
		case *Prices:
			err = tx.PutPrices(&v.Prices)
		case *core.Webhook:
			err = tx.PutWebhook(new(*v))
		case *WebhookEvent:
			err = tx.PutEvent(new(v.Event))
		case *core.Plan:
			err = tx.PutPlan(new(*v))
		case *core.User:
			err = tx.PutUser(new(*v))
		case *core.Key:
			err = tx.PutKey(new(*v))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// section returns the section of a kind: days are in the section of the counters.
func section(k Kind) Kind {
	if k == KindDay {
		return KindCounter
	}
	return k
}

// usage sets counters, and then their days.
func (w *writing) usage(ctx context.Context, batch []Record) error {
	var ids []core.CounterID
	var counters []core.Counter
	days := map[core.CounterID][]core.CounterDay{}
	for _, r := range batch {
		switch v := r.Value.(type) {
		case *Day:
			days[v.CounterID] = append(days[v.CounterID], v.CounterDay)
		case *Counter:
			c, err := v.counter(w.anchors[v.CounterID])
			if err != nil {
				return fmt.Errorf("the counter of %s: %w", nameOf(v.CounterID), err)
			}
			ids, counters = append(ids, v.CounterID), append(counters, c)
		}
	}
	if len(ids) > 0 {
		if err := w.to.SetCounters(ctx, ids, counters); err != nil {
			return err
		}
	}
	for id, list := range days {
		w.group.Go(func() error { return w.to.SetDays(ctx, id, list) })
	}
	return nil
}

// compare exports the written accounts and compares them with the source. It returns the number of events that the target
// has kept.
func (w *writing) compare(ctx context.Context, written *filter) (int64, error) {
	if err := w.checkRoom(); err != nil { // the store may remove entries after they were compared
		return 0, err
	}
	o := w.o
	o.Account = ""
	look := &lookUps{store: w.to, digest: newDigest()}
	f := newFilter(o, look, "compare")
	f.first, f.since, f.audit = written.first, written.since, written.audit
	look.group.SetLimit(workers)
	exporting := ExportOptions{NoHistory: o.NoHistory, page: o.page, entryPage: o.entryPage, compares: true}
	for _, a := range w.accounts {
		had, err := w.to.Account(ctx, a.ID)
		if err == nil {
			err = exportTo(ctx, w.to, []*core.Account{had}, exporting, f)
		}
		if err != nil {
			return 0, errors.Join(err, look.group.Wait())
		}
	}
	if err := errors.Join(look.group.Wait(), w.checkRoom()); err != nil {
		return 0, err
	}
	want, have := w.digest.count, look.digest.count
	for _, kind := range Kinds() {
		switch {
		case w.digest.ofKind(kind) == look.digest.ofKind(kind):
		case kind == KindEvent && o.EmptyOnly && have[kind] < want[kind] && capOf(w.to) == 0:
			return 0, fmt.Errorf("%w: the store has kept %d of %d entries of the histories, because its disk or its max_history is too small: %s",
				errNoRoom, have[kind], want[kind], makeRoom)
		case kind == KindEvent && have[kind] <= want[kind] && dropsEvents(ctx, w.to, w.accounts):
		case want[kind] != have[kind]:
			return 0, fmt.Errorf("%w: %d records of the kind %s, not %d", ErrDiffers, have[kind], kind, want[kind])
		default:
			return 0, fmt.Errorf("%w: records of the kind %s differ", ErrDiffers, kind)
		}
	}
	return have[KindEvent], nil
}

// checkRoom returns an error if the target of a restore will remove entries that it has.
func (w *writing) checkRoom() error {
	b, ok := w.to.(core.BoundedHistory)
	if !ok || !w.o.EmptyOnly || w.digest.count[KindEvent] == 0 {
		return nil
	}
	if n := b.HistoryExcess(); n > 0 {
		return fmt.Errorf("%w: the histories take %d bytes more than its disk or its max_history has room for, and the store will remove the oldest: %s",
			errNoRoom, n, makeRoom)
	}
	return nil
}

// errNoRoom means that the target lacks room for the histories.
var errNoRoom = fmt.Errorf("%w, for lack of room", ErrDiffers)

// makeRoom is the advice for a restore that cannot keep all histories.
const makeRoom = "make room or raise max_history, and restore into a new directory"

// lookUps is a sink that looks the written keys up by their values, and computes the digest of all records.
type lookUps struct {
	store  core.Store
	group  errgroup.Group
	digest *digest
}

// Put implements [Sink].
func (l *lookUps) Put(ctx context.Context, r Record) error {
	l.digest.add(r.Kind, r.line)
	switch v := r.Value.(type) {
	case *core.OwnerKey:
		found, err := l.store.OwnerKeyByDigest(ctx, v.Digest)
		if errors.Is(err, core.ErrOwnerKeyNotFound) || err == nil && found.ID != v.ID {
			return fmt.Errorf("%w: the owner's key %s is not found by its value", ErrDiffers, v.ID)
		}
		return err
	case *core.Key:
		for _, d := range v.Digests() {
			l.group.Go(func() error {
				found, err := l.store.KeyByDigest(ctx, d)
				if errors.Is(err, core.ErrKeyNotFound) || err == nil && (found.ID != v.ID || found.AccountID != v.AccountID) {
					return fmt.Errorf("%w: the key %s is not found by its value", ErrDiffers, v.ID)
				}
				return err
			})
		}
	}
	return nil
}

// dropsEvents reports whether a store drops entries before they expire.
func dropsEvents(ctx context.Context, s core.Store, accounts []*Account) bool {
	c, ok := s.(core.CappedHistory)
	if !ok || len(accounts) == 0 {
		return false
	}
	cut, err := c.HistoryCut(ctx, core.CounterID{Account: accounts[0].ID, UserID: 1})
	return c.HistoryCap() > 0 || cut && err == nil
}
