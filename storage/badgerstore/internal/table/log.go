package table

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"
)

const (
	compactAgain = time.Second // the pause after a failed compaction: the next attempt merges the same tables
	sayAgain     = time.Minute // the least time between two equal lines
)

// badgerLog passes warnings and errors of Badger to a logger, and drops other lines.
type badgerLog struct {
	to *slog.Logger
	compactions

	saying sync.Mutex
	said   map[string]time.Time // when a line was logged last, by its format
}

func newLog(to *slog.Logger) *badgerLog {
	return &badgerLog{to: to, compactions: compactions{built: map[any]int{}, read: manifestMagic}, said: map[string]time.Time{}}
}

// Errorf implements badger.Logger. It drops the line "Received err": badger.Open returns the same error.
func (l *badgerLog) Errorf(format string, args ...any) {
	if !strings.HasPrefix(format, "Received err") {
		l.say(slog.LevelError, format, args)
	}
}

// Warningf implements badger.Logger. After a failed compaction it pauses the goroutine that will try again.
func (l *badgerLog) Warningf(format string, args ...any) {
	failed := strings.HasPrefix(format, "[Compactor: %d] LOG Compact FAILED")
	if failed {
		l.compacted(args[0], true)
		args[2] = "" // all tables of the compaction
	}
	if !strings.HasPrefix(format, "While running doCompact:") { // the same error a second time
		l.say(slog.LevelWarn, format, args)
	}
	if failed {
		time.Sleep(compactAgain)
	}
}

// say logs a line without line breaks, unless the same line was logged less than sayAgain ago.
func (l *badgerLog) say(level slog.Level, format string, args []any) {
	l.saying.Lock()
	defer l.saying.Unlock()
	if time.Since(l.said[format]) < sayAgain {
		return
	}
	l.said[format] = time.Now()
	l.to.Log(context.Background(), level, "badger: "+strings.Join(strings.Fields(fmt.Sprintf(format, args...)), " "))
}

// Infof implements badger.Logger.
func (*badgerLog) Infof(string, ...any) {}

// Debugf implements badger.Logger. Its lines tell when a compaction has built a table, and when it has ended.
func (l *badgerLog) Debugf(format string, args ...any) {
	switch {
	case strings.HasPrefix(format, "[%d] LOG Compact. Added %d keys."):
		if keys, _ := args[1].(uint64); keys > 0 {
			l.tableBuilt(args[0])
		}
	case strings.HasSuffix(format, "Compaction for level: %d DONE"):
		l.compacted(args[0], false)
	}
}
