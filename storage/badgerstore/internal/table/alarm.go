package table

import (
	"cmp"
	"runtime/debug"
	"sync/atomic"

	"github.com/dgraph-io/badger/v4/y"
	"github.com/klauspost/compress/s2"
)

// Badger hides the error of a block that it cannot read: it takes the block for the end of the table, and Get returns
// "not found" or an older value. But Badger formats the error in the goroutine that reads the block. So this file
// replaces the two errors of a changed byte by errors that count the calls of Error.
func init() {
	y.ErrChecksumMismatch = alarm{y.ErrChecksumMismatch}
	s2.ErrCorrupt = alarm{s2.ErrCorrupt}
}

var unreadable atomic.Uint64

type alarm struct{ error }

func (a alarm) Error() string {
	unreadable.Add(1)
	return a.error.Error()
}

func (a alarm) Unwrap() error { return a.error }

// Unreadable returns the number of unreadable blocks that this process has met so far, in any database. When the number
// changes during a read, the result of the read is invalid.
func Unreadable() uint64 { return unreadable.Load() }

// ErrUnreadable returns the damage that a read has met. before is the result of [Unreadable] before the read. It returns
// nil when the number has not changed.
func ErrUnreadable(before uint64) error {
	if unreadable.Load() == before {
		return nil
	}
	return damage("*"+Suffix, "a block cannot be read")
}

// Guard runs a read of the database, and returns damage when the read meets an unreadable block. Badger panics at a table that was
// changed or cut off while it was open, and a page of a mapped file that is gone is a fault of the memory: Guard returns damage,
// and [Unreadable] grows.
func Guard(read func() error) (err error) {
	before, faults := Unreadable(), debug.SetPanicOnFault(true)
	defer func() {
		debug.SetPanicOnFault(faults)
		if p := recover(); p != nil {
			unreadable.Add(1)
			err = damage("*"+Suffix, "a read has failed: %v", p)
		}
	}()
	err = read()
	return cmp.Or(ErrUnreadable(before), err)
}
