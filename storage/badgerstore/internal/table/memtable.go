package table

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/dgraph-io/badger/v4"
)

// The write-ahead log of a memtable (.mem) is never synced: its records are in the event log, too.
// Open removes the files that a crash has left, and the owner replays the event log from the position
// of the tables. So damage of these files heals.

// noted is a position of the event log: all before it is in a memtable or an older one.
type noted struct {
	memtable int // the number of its file
	position int64
}

// Committed notes that everything up to a position of the event log was committed.
func (db *DB) Committed(position int64) error {
	newest, err := db.newestMemtable()
	if err != nil || newest == 0 {
		return err
	}
	db.mu.Lock()
	defer db.mu.Unlock()
	if last := len(db.notes) - 1; last >= 0 && db.notes[last].memtable == newest {
		db.notes[last].position = position
		return nil
	}
	db.notes = append(db.notes, noted{newest, position})
	return nil
}

// Flushed returns a position up to which everything is in tables, on disk: of the last memtable
// whose file is gone. It is 0 when none is since the database was opened.
func (db *DB) Flushed() (int64, error) {
	numbers, err := memtables(db.o.Dir)
	if err != nil {
		return 0, err
	}
	db.mu.Lock()
	defer db.mu.Unlock()
	for len(db.notes) > 0 && len(numbers) > 0 {
		for _, n := range numbers {
			if n <= db.notes[0].memtable {
				return db.flushed, nil
			}
		}
		db.flushed, db.notes = db.notes[0].position, db.notes[1:]
	}
	return db.flushed, nil
}

// memtables returns the numbers of the files of memtables.
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

// entrySize is how much an entry, and a transaction, takes of a memtable beside its key and value, at
// most: 124 bytes for the node of a skip list, or 34 and 70 in the write-ahead log.
const entrySize = 128

// Txn is a transaction that knows how much it takes of a memtable.
type Txn struct {
	*badger.Txn
	bytes int64
}

// A memtable is ended when so much of it may be full, and takes no more than mostFilled.
func (db *DB) usuallyFilled() int64 { return db.o.MemTableSize / 8 * 6 }
func (db *DB) mostFilled() int64    { return db.o.MemTableSize / 8 * 7 }

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

// NewTxn begins a transaction that writes. The caller calls Discard.
func (db *DB) NewTxn() *Txn { return &Txn{db.NewTransaction(true), entrySize} }

// ErrUnprepared means that the next memtable cannot begin at the moment. Nothing was changed.
var ErrUnprepared = errors.New("the next memtable cannot be made")

// Commit commits a transaction. A table must never be ahead of the event log on disk. So Commit
// decides when Badger begins a memtable: when 6/8 of the last one are full it calls sync, which
// brings the event log to the disk, and then fills the memtable. While sync fails, or the file of the
// next memtable cannot be made, Commit goes on until 7/8 are full, and then returns the error of sync or
// [ErrUnprepared]. One caller at a time.
func (db *DB) Commit(t *Txn, sync func() error) error {
	if filled := db.filled + t.bytes; filled > db.usuallyFilled() {
		next, err := db.prepareMemtable(sync)
		if err == nil {
			if err := db.nextMemtable(next); err != nil {
				return err
			}
		} else if filled > db.mostFilled() {
			return err
		}
	}
	db.filled += t.bytes
	return t.Txn.Commit()
}

// Flush makes Badger write everything that was committed to a table, in the background: see
// [DB.Flushed]. It returns the error of sync, or [ErrUnprepared]. One caller at a time.
func (db *DB) Flush(sync func() error) error {
	next, err := db.prepareMemtable(sync)
	if err != nil {
		return err
	}
	return db.nextMemtable(next)
}

// prepareMemtable calls sync, and makes the file of the next memtable: empty, but with its blocks. When
// Badger cannot make the file itself it is left without a memtable, and ends the process at the next read.
func (db *DB) prepareMemtable(sync func() error) (next string, err error) {
	if err := sync(); err != nil {
		return "", err
	}
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

// nextMemtable fills the memtable with zeros until Badger begins another one, which gives the next file
// its size. The zeros are compressed to a few KiB. Badger's own way, DropPrefix, makes readers wait for a
// compaction.
func (db *DB) nextMemtable(next string) error {
	zeros := make([]byte, db.o.MemTableSize/16)
	for size := int64(0); size <= db.o.MemTableSize; size += int64(len(zeros)) {
		if err := db.Update(func(txn *badger.Txn) error { return txn.Set(db.filler, zeros) }); err != nil {
			return err
		}
		if info, err := os.Stat(next); err == nil && info.Size() > 0 { // it has the last zeros
			db.filled = int64(len(zeros)) + 2*entrySize
			return db.Update(func(txn *badger.Txn) error { return txn.Delete(db.filler) })
		}
	}
	return errors.New("badger begins no memtable")
}

// newestMemtable returns the number of the memtable that commits go to.
func (db *DB) newestMemtable() (newest int, err error) {
	numbers, err := memtables(db.o.Dir)
	for _, n := range numbers {
		newest = max(newest, n)
	}
	return newest, err
}

// Replayable notes that the event log has everything that is in no table: from the next inventory
// on Open removes memtables.
func (db *DB) Replayable() {
	db.mu.Lock()
	defer db.mu.Unlock()
	db.replayable = true
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
