package badgerstore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/dgraph-io/badger/v4"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/badgerstore/internal/eventlog"
	"github.com/limitkeeper/limitkeeper/storage/badgerstore/internal/rankset"
	"github.com/limitkeeper/limitkeeper/storage/badgerstore/internal/table"
	"github.com/limitkeeper/limitkeeper/storage/record"
)

// Update implements [core.Store].
func (s *Store) Update(ctx context.Context, account string, fn func(core.Tx) error) error {
	if err := s.enterToChange(); err != nil {
		return err
	}
	defer s.leave()
	unlock, err := s.writers.Lock(ctx, account)
	if err != nil {
		return fault(err)
	}
	defer unlock()
	txn, err := s.begin(account)
	if err != nil {
		return err
	}
	defer txn.Discard()
	t := newTx(s, snapshot{txn}, account)
	defer t.redo.done()
	if err := fn(t); err != nil {
		return err
	}
	return fault(t.finish())
}

// tx is a [core.Tx]. Its caller reads the snapshot from before the transaction. To update indexes, tx reads the snapshot
// and its own writes.
//
// tx collects writes, and moves them to the event log when they are too many for one transaction of Badger. It keeps
// indexes, holdings, unique members of users and last numbers in memory until the end, because they change often.
type tx struct {
	s       *Store
	account string
	number  int64 // of the account, 0 when it is missing
	before  snapshot
	err     error // the first error of a change: the transaction is not stored
	creates bool  // the transaction creates a resource: it is refused on a full disk

	writes   *writes
	indexes  map[string]*rankset.Set
	last     map[byte]int64   // the largest number given, by kind
	holdings map[string]int64 // by path
	unique   map[string]int64 // the user with an email or external id by path, 0 for no user
	newUsers map[int64]bool   // created by the transaction: the database has no index and no holding of them
	redo     *redo
}

func newTx(s *Store, before snapshot, account string) *tx {
	t := &tx{
		s: s, account: account, before: before, writes: newWrites(), redo: s.newRedo(),
		indexes: map[string]*rankset.Set{}, last: map[byte]int64{},
		holdings: map[string]int64{}, unique: map[string]int64{}, newUsers: map[int64]bool{},
	}
	t.number, t.err = before.number(accountIDPath(account))
	return t
}

// writable returns an error when the transaction takes no writes.
func (t *tx) writable() error {
	if t.err != nil {
		return fault(t.err)
	}
	if t.number == 0 {
		return core.ErrAccountNotFound
	}
	return nil
}

// keepError returns err for the caller, and keeps the first one for finish: a change that has failed may be half made,
// so the transaction must not be stored.
func (t *tx) keepError(err error) error {
	if err != nil && t.err == nil {
		t.err = err
	}
	return fault(err)
}

// get reads a record including the writes of the transaction.
func (t *tx) get(p path) ([]byte, error) {
	if w, ok := t.writes.value(p); ok {
		return w, nil
	}
	return t.before.get(p)
}

// put writes a record, or deletes it when the value is nil.
func (t *tx) put(p path, value []byte) error {
	t.writes.put(p, value)
	return t.spill()
}

// putJSON writes a resource.
func (t *tx) putJSON(p path, resource any) error {
	value, err := record.Encode(resource)
	if err != nil {
		return err
	}
	return t.put(p, value)
}

// spill moves the writes to the event log when they are too many.
func (t *tx) spill() error {
	if t.writes.fit() {
		return nil
	}
	err := t.redo.part(t.writes)
	t.writes = newWrites()
	return err
}

// assign gives a new resource the next number, one more than the largest ever used. It marks the number of another
// resource as used.
func (t *tx) assign(kind byte, number *int64) error {
	last, err := t.lastNumber(kind)
	if *number == 0 {
		*number = last + 1
	}
	if *number > last {
		t.last[kind], t.creates = *number, true
	}
	return err
}

func (t *tx) lastNumber(kind byte) (int64, error) {
	if n, ok := t.last[kind]; ok {
		return n, nil
	}
	return t.before.number(lastPath(t.account, kind))
}

// index opens the index with a base, to change it.
func (t *tx) index(base path) (*rankset.Set, error) {
	if f, ok := t.indexes[string(base)]; ok {
		return f, nil
	}
	f, err := t.before.index(base)
	if err != nil {
		return nil, err
	}
	t.indexes[string(base)] = f
	return f, nil
}

// openNew opens the indexes of the keys of a new user, which have no records to read.
func (t *tx) openNew(k *core.Key) error {
	for _, f := range k.Filters() {
		base := keyIndex(t.account, f)
		if f.UserID == 0 || t.indexes[string(base)] != nil {
			continue
		}
		index, err := rankset.Open(base, func([]byte) ([]byte, error) { return nil, nil })
		if err != nil {
			return err
		}
		t.indexes[string(base)] = index
	}
	return nil
}

// include adds a number to an index.
func (t *tx) include(base path, number int64) error {
	return t.change(base, number, (*rankset.Set).Add)
}

// exclude removes a number from an index.
func (t *tx) exclude(base path, number int64) error {
	return t.change(base, number, (*rankset.Set).Remove)
}

func (t *tx) change(base path, number int64, operation func(*rankset.Set, int64) error) error {
	f, err := t.index(base)
	if err != nil {
		return err
	}
	return operation(f, number)
}

// reindex removes the number out from the indexes in from, and adds the number in to the indexes in to. It skips an
// index that is in both lists, if the numbers are equal.
func (t *tx) reindex(from, to []path, out, in int64) error {
	same := func(p path, among []path) bool {
		return out == in && slices.ContainsFunc(among, func(q path) bool { return bytes.Equal(p, q) })
	}
	for _, p := range from {
		if same(p, to) {
			continue
		}
		if err := t.exclude(p, out); err != nil {
			return err
		}
	}
	for _, p := range to {
		if same(p, from) {
			continue
		}
		if err := t.include(p, in); err != nil {
			return err
		}
	}
	return nil
}

// addHolding adds to the number of times that a user has a plan, by a key or as its own. The index usersOnPlan has the
// users with a number above 0.
func (t *tx) addHolding(user int64, plan string, by int64) error {
	if plan == "" {
		return nil
	}
	p := holdingPath(t.account, user, plan)
	n, ok := t.holdings[string(p)]
	if !ok && !t.newUsers[user] {
		var err error
		if n, err = t.before.number(p); err != nil {
			return err
		}
	}
	n += by
	t.holdings[string(p)] = n
	switch {
	case n == 0:
		return t.exclude(usersOnPlan(t.account, plan), user)
	case n == by:
		return t.include(usersOnPlan(t.account, plan), user)
	}
	return nil
}

// encodeHolding returns the record of the number of times that a user has a plan, nil for 0.
func encodeHolding(n int64) []byte {
	if n == 0 {
		return nil
	}
	return encodeNumber(n)
}

// drop deletes a counter with its history.
func (t *tx) drop(kind byte, number int64) error {
	t.writes.drop(ref{number, uint32(t.number), uint32(kind)})
	return t.spill()
}

// count returns how many numbers an index had when the transaction began.
func (t *tx) count(base path) (int, error) {
	f, err := t.before.index(base)
	if err != nil {
		return 0, fault(err)
	}
	return f.Len(), nil
}

// finish stores the transaction.
func (t *tx) finish() error {
	if t.err != nil {
		return t.err
	}
	for kind, n := range t.last {
		t.writes.put(lastPath(t.account, kind), encodeNumber(n))
	}
	for p, n := range t.holdings {
		t.writes.put(path(p), encodeHolding(n))
	}
	for _, f := range t.indexes {
		f.Write(func(key, record []byte) { t.writes.put(key, record) })
	}
	if len(t.writes.byPath) == 0 && len(t.redo.parts) == 0 {
		return nil
	}
	if err := t.s.requireSpace(); t.creates && err != nil {
		return err
	}
	return t.redo.commit(t.account, t.writes)
}

var _ core.Tx = (*tx)(nil)

// snapshot is a consistent view of the database.
type snapshot struct{ txn *badger.Txn }

// get returns the value at a path, nil without a record. An empty value is not nil.
func (r snapshot) get(p path) (value []byte, err error) {
	err = r.view(p, func(record []byte) error {
		value = append(make([]byte, 0, len(record)), record...)
		return nil
	})
	if errors.Is(err, badger.ErrKeyNotFound) {
		return nil, nil
	}
	return value, err
}

// view calls fn with a record, or returns badger.ErrKeyNotFound. fn must not keep its argument. Badger also reports an unreadable block as a
// missing key; view returns an error then.
func (r snapshot) view(p path, fn func(record []byte) error) error {
	before := table.Unreadable()
	err := table.Guard(func() error {
		item, err := r.txn.Get(p)
		if err != nil {
			return err
		}
		return item.Value(fn)
	})
	return firstOf(table.ErrUnreadable(before), err)
}

// number returns the number at a path, 0 without a record.
func (r snapshot) number(p path) (int64, error) {
	value, err := r.get(p)
	if err != nil {
		return 0, err
	}
	return decodeNumber(value)
}

// index opens the index with a base.
func (r snapshot) index(base path) (*rankset.Set, error) {
	return rankset.Open(base, func(key []byte) ([]byte, error) { return r.get(key) })
}

// each calls fn with every path that begins with prefix, in ascending order, until fn returns false. fn must not keep
// its arguments.
func (r snapshot) each(prefix path, fn func(p path, value []byte) (bool, error)) error {
	return r.eachFrom(prefix, prefix, fn)
}

// eachFrom is each, but begins at the path from. It prefetches nothing: Badger does that in a goroutine of its own, where a panic ends the
// process.
func (r snapshot) eachFrom(prefix, from path, fn func(p path, value []byte) (bool, error)) error {
	o := badger.DefaultIteratorOptions
	o.Prefix, o.PrefetchValues = prefix, false
	before := table.Unreadable()
	err := table.Guard(func() error {
		it := r.txn.NewIterator(o)
		defer it.Close()
		more := true
		for it.Seek(from); more && it.Valid(); it.Next() {
			err := it.Item().Value(func(value []byte) (err error) {
				more, err = fn(it.Item().Key(), value)
				return err
			})
			if err != nil {
				return err
			}
		}
		return nil
	})
	return firstOf(err, table.ErrUnreadable(before))
}

// read runs fn on a snapshot with all answered transactions of an account. No transaction of the account is half
// applied in the snapshot; transactions of other accounts may be. read returns errors of the database as
// [core.ErrUnavailable], and errors of core unchanged.
func (s *Store) read(account string, fn func(snapshot) error) error {
	if err := s.enter(); err != nil {
		return err
	}
	defer s.leave()
	return s.readEntered(account, fn)
}

func (s *Store) readEntered(account string, fn func(snapshot) error) error {
	txn, err := s.begin(account)
	if err != nil {
		return err
	}
	defer txn.Discard()
	return fault(fn(snapshot{txn}))
}

// begin takes a snapshot. It first waits until no transaction of several parts is being applied to the account.
func (s *Store) begin(account string) (*badger.Txn, error) {
	for {
		s.applyingMu.RLock()
		done, busy := s.applying[account]
		if !busy {
			txn := s.db.NewTransaction(false)
			s.applyingMu.RUnlock()
			return txn, nil
		}
		s.applyingMu.RUnlock()
		if err := s.await(done); err != nil {
			return nil, err
		}
	}
}

// tryBegin takes a snapshot. It returns false while a transaction of several parts is being applied to the account.
func (s *Store) tryBegin(account string) (txn *badger.Txn, ok bool) {
	s.applyingMu.RLock()
	defer s.applyingMu.RUnlock()
	if _, busy := s.applying[account]; busy {
		return nil, false
	}
	return s.db.NewTransaction(false), true
}

// beginAny takes a snapshot without waiting. It also returns the accounts whose transactions may be half applied in the
// snapshot.
func (s *Store) beginAny() (*badger.Txn, map[string]chan struct{}) {
	s.applyingMu.RLock()
	defer s.applyingMu.RUnlock()
	return s.db.NewTransaction(false), maps.Clone(s.applying)
}

// fault turns an error into an error of core: errors of core stay, others become [core.ErrUnavailable].
func fault(err error) error {
	if err == nil {
		return nil
	}
	if _, ok := errors.AsType[*core.Error](err); ok {
		return err
	}
	if errors.Is(err, eventlog.ErrTemporary) {
		err = core.Logged(err)
	}
	return core.Unavailable(err)
}

// absent returns the damage of a missing record to which another record refers.
func absent(p path) error { return contradiction(p, "it is missing, but another record refers to it") }

// contradiction returns the damage of a record. The text contains no digest, no email address and no external id.
func contradiction(p path, format string, args ...any) error {
	if p[0] == kindDigest || p[0] == kindOwnerDigest || p[0] == kindEmail || p[0] == kindExternalID {
		p = p[:1]
	}
	return &table.DamageError{File: "*" + table.Suffix, What: fmt.Sprintf("the record %q: ", p) + fmt.Sprintf(format, args...)}
}

// listed reads the resources with the numbers from an index. A missing resource is damage.
func listed[T any](r snapshot, numbers []int64, path func(number int64) path) ([]*T, error) {
	list := make([]*T, 0, len(numbers))
	for _, n := range numbers {
		value, err := r.get(path(n))
		if err != nil {
			return nil, err
		}
		if value == nil {
			return nil, absent(path(n))
		}
		resource, err := record.Decode[T](value)
		if err != nil {
			return nil, err
		}
		list = append(list, resource)
	}
	return list, nil
}

// named reads the resource at a path that another record names. A missing resource is damage.
func named[T any](r snapshot, p path) (*T, error) { return found[T](r, p, absent(p)) }

// user reads a user, or returns core.ErrUserNotFound. An indexed user without a record is damage.
func (r snapshot) user(account string, id int64) (*core.User, error) {
	u, err := found[core.User](r, userPath(account, id), core.ErrUserNotFound)
	if err != core.ErrUserNotFound {
		return u, err
	}
	f, err := r.index(allUsers(account))
	if err != nil {
		return nil, err
	}
	if has, err := f.Contains(id); err != nil || has {
		return nil, firstOf(err, absent(userPath(account, id)))
	}
	return nil, core.ErrUserNotFound
}

// found reads the resource at a path, or returns missing.
func found[T any](r snapshot, p path, missing error) (*T, error) {
	value, err := r.get(p)
	if err != nil {
		return nil, err
	}
	if value == nil {
		return nil, missing
	}
	return record.Decode[T](value)
}
