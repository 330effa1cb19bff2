package badgerstore

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/dgraph-io/badger/v4"
)

// Badger writes what is committed into a file that it has mapped into memory,
// shared: the write-ahead log of the current memtable, NNNNN.mem. When Commit
// returns it is in the page cache, where a kill cannot take it back. Getting it
// from there to the disk is done here and not by the two means that badger has:
//
//   - Options.SyncWrites cannot be changed while a database is open, and with every
//     commit it syncs the value log too, in which we keep nothing.
//   - DB.Sync syncs the log of the current memtable and not the one that was full a
//     moment ago. It also holds a lock that every commit needs: once a second all of
//     them would wait for the disk.
//
// Linux syncs what was written through a mapping with any descriptor of the file.

// logs brings badger's write-ahead logs to the disk.
type logs struct {
	dir string

	mu     sync.Mutex
	newest *os.File // nil unless the last call was syncNewest
	number int      // of the newest log whose directory entry is on the disk
}

func openLogs(_ *badger.DB, dir string) *logs { return &logs{dir: dir} }

// close ends the use of the logs.
func (l *logs) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.forgetLocked()
}

func (l *logs) forgetLocked() {
	if l.newest != nil {
		_ = l.newest.Close()
		l.newest = nil
	}
}

// syncAll brings everything that was committed before to the disk.
func (l *logs) syncAll() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.forgetLocked()
	numbers, err := l.numbers()
	if err != nil || len(numbers) == 0 {
		return err
	}
	for _, n := range numbers {
		// A log that is gone is in a table, which was synced before.
		if err := syncPath(l.path(n)); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return l.knownLocked(slices.Max(numbers))
}

// syncNewest does the same for a caller that calls it after every commit and makes
// no two at once: at most one log is new since the last call, and those before it
// are on the disk.
func (l *logs) syncNewest() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.openLocked(); err != nil {
		return err
	}
	return l.newest.Sync()
}

// openLocked opens the log that is written to.
func (l *logs) openLocked() error {
	number := l.number
	if l.newest == nil {
		numbers, err := l.numbers()
		if err != nil {
			return err
		}
		number = slices.Max(append(numbers, 0))
	} else if _, err := os.Stat(l.path(number + 1)); err == nil {
		number++
	} else if errors.Is(err, os.ErrNotExist) {
		return nil
	} else {
		return err
	}
	l.forgetLocked()
	newest, err := os.Open(l.path(number))
	if err != nil {
		return err
	}
	l.newest = newest
	return l.knownLocked(number)
}

// knownLocked brings the directory entry of a new log to the disk.
func (l *logs) knownLocked(number int) error {
	if number == l.number {
		return nil
	}
	l.number = number
	return syncPath(l.dir)
}

func (l *logs) path(number int) string {
	return filepath.Join(l.dir, fmt.Sprintf("%05d%s", number, logSuffix))
}

// numbers returns those of all logs, in ascending order.
func (l *logs) numbers() ([]int, error) {
	dir, err := os.Open(l.dir)
	if err != nil {
		return nil, err
	}
	defer func() { _ = dir.Close() }()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	var numbers []int
	for _, name := range names {
		digits, isLog := strings.CutSuffix(name, logSuffix)
		if n, err := strconv.Atoi(digits); isLog && err == nil {
			numbers = append(numbers, n)
		}
	}
	slices.Sort(numbers)
	return numbers, nil
}

// syncPath brings a file or directory to the disk.
func syncPath(path string) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }()
	return file.Sync()
}
