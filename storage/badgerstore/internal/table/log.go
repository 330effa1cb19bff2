package table

import (
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"time"
)

// compactAgain is the pause after a failed compaction. The next attempt merges the same tables.
const compactAgain = time.Second

// badgerLog passes warnings and errors of Badger to a logger, and drops other lines. When tables cannot be written it
// logs one line, and another line when tables are written again.
type badgerLog struct {
	to      *slog.Logger
	failing atomic.Bool // a compaction or a flush has failed, and no compaction has succeeded since
}

// Errorf implements badger.Logger. It drops the line "Received err": badger.Open returns the same error.
func (l *badgerLog) Errorf(format string, args ...any) {
	switch {
	case strings.HasPrefix(format, "Received err"):
	case strings.HasPrefix(format, "error flushing memtable"):
		l.failed(args[0])
	default:
		l.to.Error(oneLine(format, args...))
	}
}

// Warningf implements badger.Logger. After a failed compaction it pauses the goroutine that will try again.
func (l *badgerLog) Warningf(format string, args ...any) {
	switch {
	case strings.HasPrefix(format, "[Compactor: %d] LOG Compact FAILED"):
		takeBuilt()
		l.failed(args[1])
		time.Sleep(compactAgain)
	case strings.HasPrefix(format, "While running doCompact:"): // the same error a second time
	default:
		l.to.Warn(oneLine(format, args...))
	}
}

// Infof implements badger.Logger.
func (*badgerLog) Infof(string, ...any) {}

// Debugf implements badger.Logger. Its lines tell when a compaction builds a table, and when it is done: see
// compaction.go.
func (l *badgerLog) Debugf(format string, args ...any) {
	switch {
	case strings.HasPrefix(format, "[%d] LOG Compact. Added %d keys."):
		if keys, _ := args[1].(uint64); keys > 0 {
			countBuilt()
		}
	case strings.HasSuffix(format, "Compaction for level: %d DONE") && l.failing.Swap(false):
		l.to.Info("badger: tables are written again")
	}
}

// failed logs that tables cannot be written, unless the last line already said so.
func (l *badgerLog) failed(err any) {
	if !l.failing.Swap(true) {
		l.to.Error("badger: tables cannot be written: nothing is lost, Badger tries again", "error", strings.Join(strings.Fields(fmt.Sprint(err)), " "))
	}
}

// oneLine formats a message and takes the line breaks out.
func oneLine(format string, args ...any) string {
	return "badger: " + strings.Join(strings.Fields(fmt.Sprintf(format, args...)), " ")
}
