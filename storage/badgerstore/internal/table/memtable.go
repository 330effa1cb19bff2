package table

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/dgraph-io/badger/v4"
)

// The write-ahead log of a memtable (.mem) is never synced, because the event log has its records, too. Open removes
// the .mem files that a crash has left. The owner then replays the event log from the position of the tables. So
// damage of a .mem file does no harm.

// memtableEnd means that a memtable and the older ones have all records of the event log before a position.
type memtableEnd struct {
	memtable int // the number in the name of its file
	position int64
}

// Committed tells the database that all records of the event log before a position are committed.
func (db *DB) Committed(position int64) error {
	newest, err := db.newestMemtable()
	if err != nil || newest == 0 {
		return err
	}
	db.mu.Lock()
	defer db.mu.Unlock()
	if last := len(db.memtableEnds) - 1; last >= 0 && db.memtableEnds[last].memtable == newest {
		db.memtableEnds[last].position = position
		return nil
	}
	db.memtableEnds = append(db.memtableEnds, memtableEnd{newest, position})
	return nil
}

// Flushed returns the position of the event log before which all records are in tables on disk. Badger deletes the file
// of a memtable when its table is on disk, so this is the position of the newest memtable without a file. It is 0 until
// Badger has deleted the first memtable since Open.
func (db *DB) Flushed() (int64, error) {
	numbers, err := memtables(db.o.Dir)
	if err != nil {
		return 0, err
	}
	db.mu.Lock()
	defer db.mu.Unlock()
	for len(db.memtableEnds) > 0 && len(numbers) > 0 {
		for _, n := range numbers {
			if n <= db.memtableEnds[0].memtable {
				return db.flushed, nil
			}
		}
		db.flushed, db.memtableEnds = db.memtableEnds[0].position, db.memtableEnds[1:]
	}
	return db.flushed, nil
}

// memtables returns the numbers in the names of the .mem files.
func memtables(dir string) (numbers []int, err error) {
	file, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	names, err := file.Readdirnames(-1)
	for _, name := range names {
		if digits, is := strings.CutSuffix(name, LogSuffix); is {
			if n, err := strconv.Atoi(digits); err == nil {
				numbers = append(numbers, n)
			}
		}
	}
	return numbers, errors.Join(err, file.Close())
}

// entrySize bounds the average number of bytes that an entry, or a transaction, takes of a memtable in addition to keys and
// values. In the skip list an entry takes 34 bytes and 4 for each level of its node. A node has h levels with a probability of
// 2/3^h, so an entry takes 40 bytes on average, and at most 114. The eighth of the memtable above hardLimit has room for nodes
// above the average. In the write-ahead log an entry takes at most 34 bytes, a transaction 70.
const entrySize = 64

// Txn is a transaction that counts the bytes that it takes of a memtable.
type Txn struct {
	*badger.Txn
	bytes int64
}

// softLimit is the size at which Commit ends the memtable, hardLimit the size at which it refuses transactions.
func (db *DB) softLimit() int64 { return db.o.MemTableSize / 8 * 6 }
func (db *DB) hardLimit() int64 { return db.o.MemTableSize / 8 * 7 }

// Set is [badger.Txn.Set].
func (t *Txn) Set(key, value []byte) error { return t.SetEntry(badger.NewEntry(key, value)) }

// SetEntry is [badger.Txn.SetEntry].
func (t *Txn) SetEntry(e *badger.Entry) error {
	t.bytes += entrySize + int64(len(e.Key)+len(e.Value))
	return t.Txn.SetEntry(e)
}

// Delete is [badger.Txn.Delete].
func (t *Txn) Delete(key []byte) error {
	t.bytes += entrySize + int64(len(key))
	return t.Txn.Delete(key)
}

// NewTxn begins a read-write transaction. The caller calls Discard.
func (db *DB) NewTxn() *Txn { return &Txn{db.NewTransaction(true), entrySize} }

// prepareEvery is the time between two attempts to create the file of the next memtable while there is room in the
// current one. Each attempt costs a sync.
const prepareEvery = 100 * time.Millisecond

// ErrUnprepared means that the file of the next memtable cannot be created now. The database has not changed.
var ErrUnprepared = errors.New("the next memtable cannot be created")

// Commit commits a transaction. A table must never be ahead of the event log on disk. So Commit decides when Badger
// begins the next memtable: at 6/8 of the size it calls end, which syncs the event log and adds the last records of the
// memtable to a transaction. Commit commits that transaction and fills the memtable up. While end fails, or the file of
// the next memtable cannot be created, Commit still uses the memtable up to 7/8. Beyond 7/8 it returns the error of end,
// or [ErrUnprepared]. Up to 7/8, Commit tries to create the file at most every 100 ms. One caller at a time.
func (db *DB) Commit(t *Txn, end func(last *Txn) error) error {
	filled := db.filled + t.bytes
	if filled > db.hardLimit() || filled > db.softLimit() && time.Since(db.unprepared) >= prepareEvery {
		next, last, err := db.prepareMemtable(end)
		if err == nil {
			if err := db.nextMemtable(next, last); err != nil {
				return err
			}
		} else if filled > db.hardLimit() {
			return err
		} else if errors.Is(err, ErrUnprepared) {
			db.unprepared = time.Now()
		}
	}
	db.filled += t.bytes
	return t.Txn.Commit()
}

// Flush makes Badger write all committed transactions to a table, in the background: see [DB.Flushed]. It calls end as
// [DB.Commit] does. It returns the error of end, or [ErrUnprepared]. One caller at a time.
func (db *DB) Flush(end func(last *Txn) error) error {
	next, last, err := db.prepareMemtable(end)
	if err != nil {
		return err
	}
	return db.nextMemtable(next, last)
}

// prepareMemtable calls end with the last transaction of the memtable, and creates the file of the next one.
func (db *DB) prepareMemtable(end func(*Txn) error) (next string, last *Txn, err error) {
	last = db.NewTxn()
	if err = end(last); err == nil {
		next, err = db.createMemtable()
	}
	if err != nil {
		last.Discard()
	}
	return next, last, err
}

// createMemtable creates the file of the next memtable: empty, with its blocks allocated. If Badger itself failed to
// create the file, it would have no memtable, and would end the process at the next read.
func (db *DB) createMemtable() (next string, err error) {
	newest, err := db.newestMemtable()
	if err != nil {
		return "", fmt.Errorf("%w: %w", ErrUnprepared, err)
	}
	next = filepath.Join(db.o.Dir, fmt.Sprintf("%05d%s", newest+1, LogSuffix))
	if db.prepare == nil {
		return next, nil
	}
	file, err := os.OpenFile(next, os.O_CREATE|os.O_WRONLY, 0o600)
	if err == nil {
		if err = db.prepare(file, 2*db.o.MemTableSize); err != nil {
			_ = os.Remove(next)
		}
		err = errors.Join(err, file.Close())
	}
	if err != nil {
		err = fmt.Errorf("%w: %w", ErrUnprepared, err)
	}
	return next, err
}

// fillerBytes is the size of the value that fills a memtable up: with its key it fits into one block of a table, 4 KiB. Badger keeps
// all values of one key in one builder of a table, and for a larger value a builder takes four times its size.
const fillerBytes = 4<<10 - 64

// nextMemtable commits the last transaction of the memtable. Then it writes zeros until Badger begins the next memtable:
// the file at next then has a size. A table stores the zeros compressed, in a few KiB. Badger's own function for this,
// DropPrefix, makes readers wait for a compaction.
func (db *DB) nextMemtable(next string, last *Txn) error {
	defer last.Discard()
	if err := last.Txn.Commit(); err != nil {
		return err
	}
	zeros := make([]byte, fillerBytes)
	for size := int64(0); size <= db.o.MemTableSize; size += int64(len(zeros)) {
		if err := db.Update(func(txn *badger.Txn) error { return txn.Set(db.filler, zeros) }); err != nil {
			return err
		}
		if info, err := os.Stat(next); err == nil && info.Size() > 0 { // the new memtable has the last zeros
			db.filled = int64(len(zeros)) + 2*entrySize
			return db.Update(func(txn *badger.Txn) error { return txn.Delete(db.filler) })
		}
	}
	return errors.New("the next memtable did not begin")
}

// newestMemtable returns the number of the memtable that takes the commits.
func (db *DB) newestMemtable() (newest int, err error) {
	numbers, err := memtables(db.o.Dir)
	for _, n := range numbers {
		newest = max(newest, n)
	}
	return newest, err
}

// removeMemtables removes the write-ahead logs of memtables. The caller has claimed the directory.
func removeMemtables(dir string) error {
	numbers, err := memtables(dir)
	if err != nil {
		return err
	}
	names, err := filepath.Glob(filepath.Join(dir, "*"+LogSuffix))
	if err != nil || len(numbers) == 0 {
		return err
	}
	for _, name := range names {
		if err := os.Remove(name); err != nil {
			return err
		}
	}
	return syncPath(dir)
}
