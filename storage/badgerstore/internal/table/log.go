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

	mu      sync.Mutex           // guards the fields below
	said    map[string]time.Time // when a line was logged last, by its format
	running map[any]int          // tables built by running compactions, by the number of the compactor
	ended   int                  // tables built by ended compactions
}

func newLog(to *slog.Logger) *badgerLog {
	return &badgerLog{to: to, said: map[string]time.Time{}, running: map[any]int{}}
}

// built returns how many tables ended and running compactions have built.
func (l *badgerLog) built() (ended, running int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, n := range l.running {
		running += n
	}
	return l.ended, running
}

// Errorf implements badger.Logger. It drops the line "Received err": badger.Open returns the same error.
func (l *badgerLog) Errorf(format string, args ...any) {
	if !strings.HasPrefix(format, "Received err") {
		l.say(slog.LevelError, format, args)
	}
}

// Warningf implements badger.Logger. After a failed compaction, which has not changed the manifest, it pauses the goroutine that
// will try again.
func (l *badgerLog) Warningf(format string, args ...any) {
	failed := strings.HasPrefix(format, "[Compactor: %d] LOG Compact FAILED")
	if failed {
		l.mu.Lock()
		delete(l.running, args[0])
		l.mu.Unlock()
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
	l.mu.Lock()
	defer l.mu.Unlock()
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
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case strings.HasPrefix(format, "[%d] LOG Compact. Added %d keys."):
		if keys, _ := args[1].(uint64); keys > 0 {
			l.running[args[0]]++
		}
	case strings.HasSuffix(format, "Compaction for level: %d DONE"):
		l.ended += l.running[args[0]]
		delete(l.running, args[0])
	}
}
