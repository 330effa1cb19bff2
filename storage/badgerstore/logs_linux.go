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
	"syscall"

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

// logs brings badger's write-ahead logs to the disk, each before the next one: a power
// cut takes the end of what was committed and nothing from its middle.
type logs struct {
	dir      string
	syncFile func(*os.File) error

	mu     sync.Mutex // guards what follows
	newest *os.File   // the log that is written to; those before it are on the disk
	number int
	next   string // the path of the log that comes after it
}

// exists asks access(2) for nothing but that.
const exists = 0

// openLogs brings everything that badger has found, or made, to the disk.
func openLogs(_ *badger.DB, dir string, syncFile func(*os.File) error) (*logs, error) {
	l := &logs{dir: dir, syncFile: syncFile}
	numbers, err := l.numbers()
	if err != nil {
		return nil, err
	}
	for _, n := range numbers {
		err := l.open(n)
		if errors.Is(err, os.ErrNotExist) {
			continue // what was in it is in a table, which is on the disk
		}
		if err := firstOf(err, l.syncFile(l.newest)); err != nil {
			return nil, err
		}
	}
	return l, syncPath(dir)
}

// open opens a log in place of the one before.
func (l *logs) open(number int) error {
	file, err := os.Open(l.path(number))
	if err != nil {
		return err
	}
	l.close()
	l.newest, l.number, l.next = file, number, l.path(number+1)
	return nil
}

// close ends the use of the logs.
func (l *logs) close() {
	if l.newest != nil {
		_ = l.newest.Close()
	}
}

// committed is to be called after each commit, before the next one: a commit begins at
// most one log. When it did, the one before is brought to the disk.
func (l *logs) committed() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch err := syscall.Access(l.next, exists); {
	case err == syscall.ENOENT:
		return nil
	case err != nil:
		return &os.PathError{Op: "access", Path: l.next, Err: err}
	}
	if err := l.syncFile(l.newest); err != nil {
		return err
	}
	if err := l.open(l.number + 1); err != nil {
		return err
	}
	return syncPath(l.dir)
}

// sync brings everything to the disk that committed was called for. It keeps nobody
// from committing.
func (l *logs) sync() error {
	l.mu.Lock()
	newest := l.newest
	l.mu.Unlock()
	if err := l.syncFile(newest); !errors.Is(err, os.ErrClosed) {
		return err
	}
	return nil // committed has brought it to the disk
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
