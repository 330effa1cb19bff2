package table

import (
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"time"
)

// compactAgain is the time between a failed compaction and the next one, which merges the same tables again.
const compactAgain = time.Second

// badgerLog hands Badger's warnings and errors on, and keeps the rest to itself. Tables that cannot be
// written are one line, and another one when they are written again.
type badgerLog struct {
	to      *slog.Logger
	failing atomic.Bool // a compaction or a flush has failed, and no compaction has succeeded since
}

// Errorf implements badger.Logger. It leaves out the error that badger.Open returns, too.
func (l *badgerLog) Errorf(format string, args ...any) {
	switch {
	case strings.HasPrefix(format, "Received err"):
	case strings.HasPrefix(format, "error flushing memtable"):
		l.failed(args[0])
	default:
		l.to.Error(oneLine(format, args...))
	}
}

// Warningf implements badger.Logger. The goroutine of a compaction that has failed waits here.
func (l *badgerLog) Warningf(format string, args ...any) {
	switch {
	case strings.HasPrefix(format, "[Compactor: %d] LOG Compact FAILED"):
		takeBuilt()
		l.failed(args[1])
		time.Sleep(compactAgain)
	case strings.HasPrefix(format, "While running doCompact:"): // the same again
	default:
		l.to.Warn(oneLine(format, args...))
	}
}

// Infof implements badger.Logger.
func (*badgerLog) Infof(string, ...any) {}

// Debugf implements badger.Logger. It learns from it what compactions do: see compaction.go.
func (l *badgerLog) Debugf(format string, args ...any) {
	switch {
	case strings.HasPrefix(format, "[%d] LOG Compact. Added %d keys."):
		if keys, _ := args[1].(uint64); keys > 0 {
			noteBuilt()
		}
	case strings.HasSuffix(format, "Compaction for level: %d DONE") && l.failing.Swap(false):
		l.to.Info("badger: tables are written again")
	}
}

func (l *badgerLog) failed(err any) {
	if !l.failing.Swap(true) {
		l.to.Error("badger: tables cannot be written: nothing is lost, it is tried again", "error", strings.Join(strings.Fields(fmt.Sprint(err)), " "))
	}
}

// oneLine formats a message and takes the line breaks out.
func oneLine(format string, args ...any) string {
	return "badger: " + strings.Join(strings.Fields(fmt.Sprintf(format, args...)), " ")
}
