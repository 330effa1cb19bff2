package table

import (
	"sync/atomic"

	"github.com/dgraph-io/badger/v4/y"
	"github.com/klauspost/compress/s2"
)

// Badger hides the error of a block that it cannot read: the block reads as the end of its table, and
// Get says that the key is missing or returns an older value. But Badger puts the text of
// the error into a longer one, in the goroutine that reads the block. So the two errors that a changed
// byte of a block leads to count how often their text is asked for.
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

// Unreadable returns how many blocks could not be read in this process so far, in any database. When
// it has changed during a read, the result of the read means nothing.
func Unreadable() uint64 { return unreadable.Load() }

// ErrUnreadable returns the damage that a read has met, when before is what [Unreadable] returned
// before it and has changed since.
func ErrUnreadable(before uint64) error {
	if unreadable.Load() == before {
		return nil
	}
	return damage("*"+Suffix, "a block cannot be read")
}
