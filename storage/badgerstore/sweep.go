package badgerstore

import (
	"errors"

	"github.com/dgraph-io/badger/v4"
)

// sweepAtOnce is how many entries are deleted in one transaction.
const sweepAtOnce = 1000

// sweepAll deletes the entries of the histories that were left behind by deleted
// keys and users. It may take a while and stops when stop is closed. What is left is
// swept another time.
func (s *Store) sweepAll(stop <-chan struct{}) error {
	for {
		history, err := s.firstTrash()
		if err != nil || history == nil {
			return err
		}
		if err := s.sweep(history, stop); err != nil {
			return err
		}
	}
}

// errStopped means that the store is being closed.
var errStopped = errors.New("stopped")

// firstTrash returns the path of a history that was left behind, nil when there is
// none.
func (s *Store) firstTrash() (history path, err error) {
	err = s.db.View(func(txn *badger.Txn) error {
		return snapshot{txn}.each(at(kindTrash), false, func(p path, _ []byte) (bool, error) {
			r := reading{p[1:]}
			history = historyPath(r.uint64())
			return false, nil
		})
	})
	return history, err
}

// sweep deletes the entries of a history, and then that it was left behind.
func (s *Store) sweep(history path, stop <-chan struct{}) error {
	for {
		select {
		case <-stop:
			return errStopped
		default:
		}
		w := newWrites()
		err := s.db.View(func(txn *badger.Txn) error {
			return snapshot{txn}.each(history, false, func(p path, _ []byte) (bool, error) {
				w.put(p, nil)
				return len(w.byPath) < sweepAtOnce, nil
			})
		})
		if err != nil {
			return err
		}
		if len(w.byPath) < sweepAtOnce {
			w.put(append(at(kindTrash), history[1:]...), nil)
			return s.store(w)
		}
		if err := s.store(w); err != nil {
			return err
		}
	}
}
