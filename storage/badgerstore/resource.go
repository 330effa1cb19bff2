package badgerstore

import (
	"context"
	"strconv"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/record"
	"github.com/limitkeeper/limitkeeper/storage/resource"
)

// database is the [resource.Database] of a store.
type database struct{ s *Store }

// View implements [resource.Database].
func (d database) View(_ context.Context, in resource.Scope, fn func(resource.Reader) error) error {
	return d.s.read(func(r view) error { return fn(reader{r, d.s, in, in.Of()}) })
}

// Change implements [resource.Database]. Changes in the same scope run one at a time. A change of one account in the registry may run beside
// the creation of another: it changes no set and no unique value of another account.
func (d database) Change(ctx context.Context, in resource.Scope, fn func(resource.Reader) (*resource.Changes, error)) error {
	s := d.s
	if err := s.enterToChange(); err != nil {
		return err
	}
	defer s.leave()
	locks := &s.writers
	if in.Registry {
		locks = &s.registry
	}
	if in.Names { // always before the lock of the account, so that two transactions cannot wait for each other
		unlock, err := locks.Lock(ctx, "")
		if err != nil {
			return fault(err)
		}
		defer unlock()
	}
	unlock, err := locks.Lock(ctx, in.Account)
	if err != nil {
		return fault(err)
	}
	defer unlock()
	var w *writes
	var c *resource.Changes
	err = s.inView(func(v view) error {
		r := reader{v, s, in, in.Of()}
		c, err = fn(r)
		if s.suspect(err) != nil || c.Empty() {
			return err
		}
		if err := s.requireSpace(); c.Creates && err != nil {
			return err
		}
		w, err = r.writes(c)
		return fault(err)
	})
	if err != nil || w == nil {
		return err
	}
	if !w.purges {
		if err := s.keepDeleted(w, in.Of()); err != nil {
			return fault(err)
		}
	}
	if len(c.Audit.Append) > 0 || c.Audit.Last > 0 {
		unlock, err := s.audits.Lock(ctx, c.Audit.Log.Account)
		if err != nil {
			return fault(err)
		}
		defer unlock()
		if err := s.readEntered(func(v view) error { return v.changeAudit(w, &c.Audit) }); err != nil {
			return err
		}
	}
	return fault(s.commit(w))
}

// reader is a [resource.Reader].
type reader struct {
	view
	s       *Store
	in      resource.Scope
	account string // "" for the registry
}

// Exists implements [resource.Reader].
func (r reader) Exists() (bool, error) {
	if r.in.Registry {
		return true, nil
	}
	n, err := r.number(accountIDPath(r.account))
	if err != nil || n == 0 {
		return false, fault(err)
	}
	b, err := r.existing(recordPath(resource.Account, "", n))
	if err != nil {
		return false, fault(err)
	}
	a, err := record.Decode[core.Account](b)
	return err == nil && !a.Deleting, fault(err)
}

// Records implements [resource.Reader].
func (r reader) Records(kind resource.Kind, ids ...string) ([][]byte, error) {
	return readAll(ids, func(id string) ([]byte, error) { return r.record(kind, id) })
}

// readAll returns the results of read for each element of a list, or the first error as a fault.
func readAll[T, R any](list []T, read func(T) (R, error)) ([]R, error) {
	results := make([]R, len(list))
	for i, x := range list {
		var err error
		if results[i], err = read(x); err != nil {
			return nil, fault(err)
		}
	}
	return results, nil
}

// record reads the record with an id, nil for none. A missing record that another one names is damage.
func (r reader) record(kind resource.Kind, id string) ([]byte, error) {
	if kind == resource.User {
		return r.user(id)
	}
	if p := r.unnumbered(kind, id); p != nil {
		return r.get(p)
	}
	n, err := r.number(idPath(kind, r.account, id))
	if err != nil || n == 0 {
		return nil, err
	}
	return r.existing(recordPath(kind, r.account, n))
}

// unnumbered returns the path of the record of a kind without numbers, nil for any other kind.
func (r reader) unnumbered(kind resource.Kind, id string) path {
	switch kind {
	case resource.Access:
		return at(kindAccess).text(id)
	case resource.Prices:
		return at(kindPrices).text(r.account)
	}
	return nil
}

func (r reader) user(id string) ([]byte, error) {
	n, err := strconv.ParseInt(id, 10, 64)
	if err != nil {
		return nil, nil
	}
	value, err := r.get(userPath(r.account, n))
	if err != nil || value != nil {
		return value, err
	}
	return nil, r.unlisted(setPath(r.account, resource.UserSet(core.UserFilter{})), n, userPath(r.account, n))
}

// Holder implements [resource.Reader]. A missing resource that the record names is damage.
func (r reader) Holder(u resource.Unique) (string, error) {
	id, err := r.get(uniquePath(r.account, u))
	if err == nil && id != nil {
		_, err = r.existingRecord(u.Kind(), string(id))
	}
	return string(id), fault(err)
}

// existingRecord reads the record with an id that another record names. A missing one is damage.
func (r reader) existingRecord(kind resource.Kind, id string) ([]byte, error) {
	value, err := r.record(kind, id)
	if err != nil || value != nil {
		return value, err
	}
	if kind == resource.User {
		n, _ := strconv.ParseInt(id, 10, 64)
		return nil, absent(userPath(r.account, n))
	}
	return nil, absent(idPath(kind, r.account, id))
}

// Counters implements [resource.Reader].
func (r reader) Counters(ids []core.CounterID) ([]core.Counter, error) {
	refs, err := readAll(ids, func(id core.CounterID) (ref, error) { return r.s.refOf(r.view, id) })
	if err != nil {
		return nil, err
	}
	states, err := r.s.peekDurable(refs)
	return countersOf(states), err
}

// Last implements [resource.Reader].
func (r reader) Last(kind resource.Kind) (int64, error) {
	n, err := r.number(lastPath(r.account, kind))
	return n, fault(err)
}

// writes returns the records of changes.
func (r reader) writes(c *resource.Changes) (*writes, error) {
	w := newWrites()
	w.purges = c.Purges
	for _, x := range c.Records { // first: another resource may have the number now
		if x.Was != 0 {
			w.put(recordPath(x.Kind, r.account, x.Was), nil)
		}
	}
	for _, x := range c.Records {
		if err := r.put(w, x); err != nil {
			return nil, err
		}
	}
	for name, change := range c.Sets {
		if err := r.changeSet(w, name, change); err != nil {
			return nil, err
		}
	}
	for u, id := range c.Unique {
		value := []byte(id)
		if id == "" {
			value = nil
		}
		w.put(uniquePath(r.account, u), value)
	}
	for kind, n := range c.Last {
		w.put(lastPath(r.account, kind), encodeNumber(n))
	}
	return w, r.follow(w, c)
}

// put writes the record of a resource, and the number of the resource by its id. Without a value it deletes them.
func (r reader) put(w *writes, x resource.Record) error {
	if p := r.unnumbered(x.Kind, x.ID); p != nil {
		w.put(p, x.Value)
		return nil
	}
	number, byID := x.Number, idPath(x.Kind, r.account, x.ID)
	if number == 0 && (x.Value != nil || r.in.Registry) {
		var err error
		if number, err = r.number(byID); err != nil {
			return err
		}
	}
	if x.Value == nil && r.in.Registry {
		w.put(recordPath(x.Kind, r.account, number), nil)
		w.put(byID, nil)
		return nil
	}
	if x.Kind != resource.User {
		var value []byte
		if number != 0 {
			value = encodeNumber(number)
		}
		w.put(byID, value)
	}
	if x.Value != nil {
		w.put(recordPath(x.Kind, r.account, number), x.Value)
	}
	return nil
}

// changeSet changes a set.
func (r reader) changeSet(w *writes, name string, c *resource.SetChange) error {
	f, err := r.index(setPath(r.account, name))
	if err != nil {
		return err
	}
	for _, m := range c.Remove {
		if r.in.Registry { // the records have no numbers
			m.Number, err = r.number(idPath(resource.KindOfSet(name), r.account, m.ID))
		}
		if err == nil {
			err = f.Put(m.Number, false)
		}
		if err != nil {
			return err
		}
	}
	for _, m := range c.Add {
		err = firstOf(err, f.Put(m.Number, true))
	}
	f.Write(func(key, record []byte) { w.put(key, record) })
	return err
}

// follow adds the consequences of changes: the digests of changed keys, the counters of deleted users and keys, moved keys, and accounts whose removal is
// complete.
func (r reader) follow(w *writes, c *resource.Changes) error {
	for _, a := range c.Accounts {
		if a.After != nil {
			continue
		}
		number, err := r.number(accountIDPath(a.Before.ID))
		if err != nil {
			return err
		}
		w.purged = append(w.purged, purged{uint32(number), a.Before.ID})
	}
	account, err := r.number(accountIDPath(r.account))
	if err != nil {
		return err
	}
	drop := func(kind uint32, number int64) { w.dropped = append(w.dropped, ref{number, uint32(account), kind}) }
	for _, u := range c.Users {
		if u.After == nil {
			drop(kindUser, u.Before.ID)
		}
	}
	for _, k := range c.Keys {
		if k.Before == nil {
			continue
		}
		for _, d := range k.Before.Digests() {
			w.put(digestPath(d), nil)
		}
		switch {
		case k.After == nil || k.After.Seq != k.Before.Seq:
			drop(kindKey, k.Before.Seq)
		case k.After.UserID != k.Before.UserID:
			w.moved = append(w.moved, ref{k.Before.Seq, uint32(account), kindKey})
		}
	}
	for _, k := range c.Keys { // last: the digest of another key may have moved here
		if k.After == nil {
			continue
		}
		for _, d := range k.After.Digests() {
			w.put(digestPath(d), encodeRef(r.account, k.After.Seq))
		}
	}
	return nil
}
