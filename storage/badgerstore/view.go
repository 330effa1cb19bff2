package badgerstore

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/dgraph-io/badger/v4"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/badgerstore/internal/rankset"
	"github.com/limitkeeper/limitkeeper/storage/badgerstore/internal/table"
	"github.com/limitkeeper/limitkeeper/storage/eventlog"
)

// view is a consistent view of the database.
type view struct{ txn *badger.Txn }

// get returns the value at a path, nil without a record. An empty value is not nil.
func (r view) get(p path) (value []byte, err error) {
	err = r.read(p, func(record []byte) error {
		value = append(make([]byte, 0, len(record)), record...)
		return nil
	})
	if errors.Is(err, badger.ErrKeyNotFound) {
		return nil, nil
	}
	return value, err
}

// read calls fn with a record, or returns badger.ErrKeyNotFound. fn must not keep its argument. Badger also reports an unreadable block as a
// missing key; view returns an error then.
func (r view) read(p path, fn func(record []byte) error) error {
	return table.Guard(func() error {
		item, err := r.txn.Get(p)
		if err != nil {
			return err
		}
		return item.Value(fn)
	})
}

// number returns the number at a path, 0 without a record.
func (r view) number(p path) (int64, error) {
	value, err := r.get(p)
	if err != nil {
		return 0, err
	}
	return decodeNumber(value)
}

// index opens the index with a base.
func (r view) index(base path) (*rankset.Set, error) {
	return rankset.Open(base, func(key []byte) ([]byte, error) { return r.get(key) })
}

// unlisted returns the damage of a missing record whose number is in the index with a base, nil when the record never was there.
func (r view) unlisted(base path, number int64, p path) error {
	f, err := r.index(base)
	if err != nil {
		return err
	}
	if has, err := f.Contains(number); err != nil || !has {
		return err
	}
	return absent(p)
}

// eachFrom calls fn with every path that begins with prefix, from the path from on and in ascending order, until fn returns false. fn must not
// keep its arguments. It prefetches nothing: Badger does that in a goroutine of its own, where a panic ends the process.
func (r view) eachFrom(prefix, from path, fn func(p path, value []byte) (bool, error)) error {
	return r.each(prefix, from, false, fn)
}

// each is eachFrom, in descending order with down.
func (r view) each(prefix, from path, down bool, fn func(p path, value []byte) (bool, error)) error {
	o := badger.DefaultIteratorOptions
	o.Prefix, o.PrefetchValues, o.Reverse = prefix, false, down
	return table.Guard(func() error {
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
}

// The bounds of what one iterator reads in batches; see the memtables of package table.
const (
	iteratorRecords = 1000
	iteratorBytes   = 1 << 20
)

// batches calls fn with every record whose path begins with prefix, in ascending order. fn must not keep its arguments. It reads each batch in the
// view that in calls its argument with. After each batch, and without an open iterator, it calls pause with the size of the batch. It
// ends when fn or pause returns an error.
func batches(in func(func(view) error) error, prefix path, pause func(bytes int) error, fn func(p path, value []byte) error) error {
	for from := prefix; ; {
		bytes, n, next := 0, 0, path(nil)
		err := in(func(r view) error {
			return r.eachFrom(prefix, from, func(p path, value []byte) (bool, error) {
				if n++; n > iteratorRecords || bytes > iteratorBytes {
					next = slices.Clone(p)
					return false, nil
				}
				bytes += len(p) + len(value)
				return true, fn(p, value)
			})
		})
		if err == nil {
			err = pause(bytes)
		}
		if err != nil || next == nil {
			return err
		}
		from = next
	}
}

// read runs fn on a view with all answered transactions. It returns errors of the database as [core.ErrUnavailable], and errors
// of core unchanged.
func (s *Store) read(fn func(view) error) error {
	if err := s.enter(); err != nil {
		return err
	}
	defer s.leave()
	return s.readEntered(fn)
}

func (s *Store) readEntered(fn func(view) error) error {
	return fault(s.inView(func(r view) error { return s.suspect(fn(r)) }))
}

// inView runs fn on a view that has no transaction half, and returns the error of fn.
func (s *Store) inView(fn func(view) error) error {
	if s.held != nil { // of a snapshot
		return fn(view{s.held})
	}
	s.halfApplied.RLock()
	err := s.inDoubt() // then a transaction may be half applied
	txn := s.db.NewTransaction(false)
	s.halfApplied.RUnlock()
	defer txn.Discard()
	if err != nil {
		return err
	}
	return fn(view{txn})
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
func (r view) existing(p path) ([]byte, error) {
	value, err := r.get(p)
	if err == nil && value == nil {
		err = absent(p)
	}
	return value, err
}

// firstOf returns the first error that is not nil.
func firstOf(errs ...error) error { return cmp.Or(errs...) }
