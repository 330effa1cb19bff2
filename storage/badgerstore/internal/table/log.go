package table

import (
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dgraph-io/badger/v4"
)

// compactAgain is the pause after a failed compaction. The next attempt merges the same tables.
const compactAgain = time.Second

// badgerLog passes warnings and errors of Badger to a logger, and drops other lines. When tables cannot be written it
// logs one line, and another line when all tables are written again.
type badgerLog struct {
	to *slog.Logger
	db atomic.Pointer[badger.DB] // nil until the database is open

	mu         sync.Mutex
	compaction bool   // the last compaction has failed
	flush      bool   // the last flush of a memtable has failed; Badger tries again with the same memtable
	flushed    uint64 // the newest version in a table when the flush failed first
}

// Errorf implements badger.Logger. It drops the line "Received err": badger.Open returns the same error.
func (l *badgerLog) Errorf(format string, args ...any) {
	switch {
	case strings.HasPrefix(format, "Received err"):
	case strings.HasPrefix(format, "error flushing memtable"):
		l.flushFailed(args[0])
	default:
		l.to.Error(oneLine(format, args...))
	}
}

// Warningf implements badger.Logger. After a failed compaction it pauses the goroutine that will try again.
func (l *badgerLog) Warningf(format string, args ...any) {
	switch {
	case strings.HasPrefix(format, "[Compactor: %d] LOG Compact FAILED"):
		takeBuilt()
		l.compacted(args[1])
		time.Sleep(compactAgain)
	case strings.HasPrefix(format, "While running doCompact:"): // the same error a second time
	default:
		l.to.Warn(oneLine(format, args...))
	}
}

// Infof implements badger.Logger.
func (*badgerLog) Infof(string, ...any) {}

// Debugf implements badger.Logger. Its lines tell when a compaction builds a table, and when it is done: see
// compaction.go and allocators.go.
func (l *badgerLog) Debugf(format string, args ...any) {
	switch {
	case strings.HasPrefix(format, "[%d] LOG Compact. Added %d keys."):
		if keys, _ := args[1].(uint64); keys > 0 {
			countBuilt()
		}
		releaseAllocators(l.db.Load())
	case strings.HasSuffix(format, "Compaction for level: %d DONE"):
		l.compacted(nil)
	}
}

// compacted records the result of a compaction.
func (l *badgerLog) compacted(failed any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.setLocked(failed != nil, l.flush, failed)
}

// flushFailed records that the flush of a memtable has failed.
func (l *badgerLog) flushFailed(err any) {
	newest := l.newestVersion()
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.flush {
		l.flushed = newest
	}
	l.setLocked(l.compaction, true, err)
}

// checkFlush records the end of a failed flush. Badger does not log this end, but the next flushed table has newer
// versions than all other tables.
func (l *badgerLog) checkFlush() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.flush && l.newestVersion() > l.flushed {
		l.setLocked(l.compaction, false, nil)
	}
}

// newestVersion returns the newest version of a record in a table.
func (l *badgerLog) newestVersion() (newest uint64) {
	if db := l.db.Load(); db != nil {
		for _, t := range db.Tables() {
			newest = max(newest, t.MaxVersion)
		}
	}
	return newest
}

// setLocked sets the failure states, and logs the beginning of the first failure and the end of the last one. The line
// for the end is a warning, so that a log without Info has it, too.
func (l *badgerLog) setLocked(compaction, flush bool, err any) {
	failing := l.compaction || l.flush
	l.compaction, l.flush = compaction, flush
	switch {
	case failing == (compaction || flush):
	case failing:
		l.to.Warn("badger: tables are written again")
	default:
		l.to.Error("badger: tables cannot be written: nothing is lost, Badger tries again", "error", strings.Join(strings.Fields(fmt.Sprint(err)), " "))
	}
}

// oneLine formats a message without line breaks.
func oneLine(format string, args ...any) string {
	return "badger: " + strings.Join(strings.Fields(fmt.Sprintf(format, args...)), " ")
}
