package badgerstore

import (
	"errors"
	"fmt"
	"maps"

	"github.com/dgraph-io/badger/v4"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/badgerstore/internal/eventlog"
	"github.com/limitkeeper/limitkeeper/storage/badgerstore/internal/rankset"
	"github.com/limitkeeper/limitkeeper/storage/badgerstore/internal/table"
	"github.com/limitkeeper/limitkeeper/storage/record"
)

// snapshot is the store as it was at one moment.
type snapshot struct{ txn *badger.Txn }

// get returns the value of a path, nil when there is none. An empty value is not
// nil.
func (r snapshot) get(p path) ([]byte, error) {
	item, err := r.item(p)
	if errors.Is(err, badger.ErrKeyNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return item.ValueCopy(make([]byte, 0, item.ValueSize()))
}

// item reads a record, or returns badger.ErrKeyNotFound. Badger hides that a block cannot be read.
func (r snapshot) item(p path) (*badger.Item, error) {
	before := table.Unreadable()
	item, err := r.txn.Get(p)
	return item, firstOf(table.ErrUnreadable(before), err)
}

// number returns the number that is stored at a path, 0 when there is none.
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

// each calls fn with every path that begins with prefix, in ascending order, until
// fn returns false. fn keeps neither path nor value.
func (r snapshot) each(prefix path, values bool, fn func(p path, value []byte) (bool, error)) error {
	return r.eachFrom(prefix, prefix, values, fn)
}

// eachFrom is each, but begins at the path from.
func (r snapshot) eachFrom(prefix, from path, values bool, fn func(p path, value []byte) (bool, error)) error {
	o := badger.DefaultIteratorOptions
	o.Prefix, o.PrefetchValues = prefix, values
	before := table.Unreadable()
	it := r.txn.NewIterator(o)
	defer it.Close()
	for it.Seek(from); it.Valid(); it.Next() {
		var more bool
		err := it.Item().Value(func(value []byte) (err error) {
			more, err = fn(it.Item().Key(), value)
			return err
		})
		if err != nil || !more {
			return err
		}
	}
	return table.ErrUnreadable(before)
}

// read runs fn on a snapshot of an account, whole: with every transaction that was
// answered and none that is half written. The snapshot has all accounts, but those
// others may be half written. A fault of the medium is reported as
// [core.ErrUnavailable], the refusals of core as they are.
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

// begin takes a snapshot as soon as no transaction is being spread over the account.
func (s *Store) begin(account string) (*badger.Txn, error) {
	for {
		s.spreading.RLock()
		done, busy := s.spread[account]
		if !busy {
			txn := s.db.NewTransaction(false)
			s.spreading.RUnlock()
			return txn, nil
		}
		s.spreading.RUnlock()
		if err := s.await(done); err != nil {
			return nil, err
		}
	}
}

// tryBegin takes a snapshot unless a transaction is being spread over the account.
func (s *Store) tryBegin(account string) (txn *badger.Txn, ok bool) {
	s.spreading.RLock()
	defer s.spreading.RUnlock()
	if _, busy := s.spread[account]; busy {
		return nil, false
	}
	return s.db.NewTransaction(false), true
}

// beginAny takes a snapshot at once, and returns over which accounts a transaction
// was being spread at that moment: there it may be half written.
func (s *Store) beginAny() (*badger.Txn, map[string]chan struct{}) {
	s.spreading.RLock()
	defer s.spreading.RUnlock()
	return s.db.NewTransaction(false), maps.Clone(s.spread)
}

// fault turns an error into one that core knows.
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

// absent returns the damage that a record is missing which another one names.
func absent(p path) error { return contradiction(p, "it is missing, and another record names it") }

// contradiction returns the damage of a record. It leaves out digests and addresses.
func contradiction(p path, format string, args ...any) error {
	if p[0] == kindDigest || p[0] == kindOwnerDigest || p[0] == kindEmail {
		p = p[:1]
	}
	return &table.DamageError{File: "*" + table.Suffix, What: fmt.Sprintf("the record %q: ", p) + fmt.Sprintf(format, args...)}
}

// listed reads the resources with the numbers, which an index names.
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

// named reads the resource at a path that another record names.
func named[T any](r snapshot, p path) (*T, error) { return found[T](r, p, absent(p)) }

// user reads a user. One that the list of users names and that has no record is damage.
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
