package badgerstore

import (
	"encoding/binary"
	"fmt"
	"maps"
	"slices"

	"github.com/dgraph-io/badger/v4"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/record"
)

// The largest number of records and bytes in one transaction of Badger. Badger's own limits are about 15 % of a
// memtable. These limits are well below, and keep each commit short.
const (
	maxWrites     = 4000
	maxWriteBytes = 512 << 10
)

// The largest path and value of one record. Badger refuses keys of more than 65,000 bytes, and appends its version to a path.
const (
	maxPathBytes  = 64_000
	maxValueBytes = 256 << 10
)

// writes are the changes of a transaction.
type writes struct {
	byPath   map[string][]byte // the new values, nil to delete a record
	dropped  []ref             // counters that are deleted with their histories
	moved    []ref             // keys that move to another user: their open holds end
	purged   []purged          // accounts whose removal is complete
	purges   bool              // see [resource.Changes.Purges]
	bytes    int               // of paths and values
	position int64             // of the redo record
	err      error             // a record that Badger could not apply; it must not get into the event log, which is replayed at each start
}

func newWrites() *writes { return &writes{byPath: map[string][]byte{}} }

// put writes a record, or deletes it when the value is nil.
func (w *writes) put(p path, value []byte) {
	if len(p) > maxPathBytes || len(value) > maxValueBytes {
		w.err = &core.Error{Code: core.CodeInternal, Message: fmt.Sprintf("A record of %d bytes with a key of %d bytes does not fit into the database (%q…)", len(value), len(p), p[:1])}
	}
	w.byPath[string(p)] = value
	w.bytes += len(p) + len(value)
}

// value returns the new value at a path, nil for a deletion. ok is false without a write at the path.
func (w *writes) value(p path) (value []byte, ok bool) {
	value, ok = w.byPath[string(p)]
	return value, ok
}

// fit reports whether the records fit into one transaction of Badger.
func (w *writes) fit() bool { return len(w.byPath) <= maxWrites && w.bytes <= maxWriteBytes }

// write commits the records of writes, and then the pages of the deleted counters in transactions of their own: a page has up
// to 440 KiB (64 counters with [core.MaxMetersEver] meters), and a transaction takes 630 KB on a small disk. After a crash in
// between, the replay writes all of them again. The events of deleted counters up to a position do not count.
// The caller holds committing.
func (s *Store) write(w *writes, position int64) (err error) {
	for rest := slices.Sorted(maps.Keys(w.byPath)); len(rest) > 0 && err == nil; {
		err = s.commitLocked(w.position+1, func(txn *badger.Txn) error {
			for n, bytes := 0, 0; len(rest) > 0 && n < maxWrites; n++ {
				p, value := path(rest[0]), w.byPath[rest[0]]
				if bytes += len(p) + len(value); bytes > maxWriteBytes && n > 0 {
					break
				}
				if err := setOrDelete(txn, p, value); err != nil {
					return err
				}
				rest = rest[1:]
			}
			return nil
		})
	}
	slices.SortFunc(w.dropped, ref.compare)
	for rest := w.dropped; len(rest) > 0 && err == nil; {
		err = s.commitLocked(w.position+1, func(txn *badger.Txn) error {
			for bytes := 0; len(rest) > 0 && bytes < pageTxnBytes; {
				n := countOnSamePage(rest)
				size, err := dropCounters(txn, rest[:n], position)
				if err != nil {
					return err
				}
				bytes += size
				rest = rest[n:]
			}
			return nil
		})
	}
	for _, p := range w.purged {
		err = firstOf(err, s.removePurged(p, w.position+1))
	}
	return err
}

func setOrDelete(txn *badger.Txn, p path, value []byte) error {
	if value == nil {
		return txn.Delete(p)
	}
	return txn.Set(p, value)
}

// The kinds of writes in a redo record.
const (
	opSet = iota
	opDelete
	opDrop
	opMove
	opPurge
)

// encode encodes the writes, in any order.
//
//	kind   1 byte, see above
//	path   text; of a dropped counter, or of a key that moves, as if its number was the number of a page; of a purged account see purged
//	value  text, only with opSet
func (w *writes) encode() []byte {
	b := make([]byte, 0, w.bytes+8*len(w.byPath))
	for p, value := range w.byPath {
		if value == nil {
			b = path(append(b, opDelete)).text(p)
			continue
		}
		b = path(append(b, opSet)).text(p)
		b = append(binary.AppendUvarint(b, uint64(len(value))), value...)
	}
	for _, of := range w.dropped {
		b = path(append(b, opDrop)).text(string(pagePath(of)))
	}
	for _, of := range w.moved {
		b = path(append(b, opMove)).text(string(pagePath(of)))
	}
	for _, p := range w.purged {
		b = path(append(b, opPurge)).text(string(p.encode()))
	}
	return b
}

// decodeWrites decodes the result of encode.
func decodeWrites(b []byte) (*writes, error) {
	w := newWrites()
	for r := record.NewReader(b); !r.Ended(); {
		op, p, ok := r.Uvarint(), path(r.Text()), true
		switch op {
		case opSet:
			value := r.Take(r.Uvarint())
			w.put(p, append(make([]byte, 0, len(value)), value...))
		case opDelete:
			w.put(p, nil)
		case opDrop, opMove:
			var of ref
			if of, ok = pageOf(p); op == opDrop {
				w.dropped = append(w.dropped, of)
			} else {
				w.moved = append(w.moved, of)
			}
		case opPurge:
			var of purged
			of, ok = decodePurged(p)
			w.purged = append(w.purged, of)
		default:
			ok = false
		}
		if !ok || r.Failed() {
			return nil, errEvent
		}
	}
	return w, nil
}
