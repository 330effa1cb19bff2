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
)

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

// contradiction returns the damage of a record. The text contains no digest and no unique value.
func contradiction(p path, format string, args ...any) error {
	if p[0] == kindDigest || p[0] == kindUnique {
		p = p[:1]
	}
	return &table.DamageError{File: "*" + table.Suffix, What: fmt.Sprintf("the record %q: ", p) + fmt.Sprintf(format, args...)}
}

// existing reads the record at a path that another record names. A missing one is damage.
func (r snapshot) existing(p path) ([]byte, error) {
	value, err := r.get(p)
	if err == nil && value == nil {
		err = absent(p)
	}
	return value, err
}

// firstOf returns the first error that is not nil.
func firstOf(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
