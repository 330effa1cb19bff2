// Package logthrottle bounds the log lines about an error that every request may meet: a line for each request would fill
// the disk.
package logthrottle

import (
	"sync"
	"time"
)

// LinesPerMinute is the number of lines that a [Throttle] admits in a minute.
const LinesPerMinute = 60

// Throttle admits [LinesPerMinute] lines of one kind in each minute, which begins with its first line. The zero value is
// ready to use. Its method may be called concurrently.
type Throttle struct {
	mu         sync.Mutex
	began      time.Time // of the minute
	lines      int       // admitted in the minute
	suppressed int64     // refused since the last admitted line
}

// Admit reports whether to write a line at the time now. If so, it returns the number of lines that it has refused since
// the last admitted one.
func (t *Throttle) Admit(now time.Time) (suppressed int64, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if age := now.Sub(t.began); age >= time.Minute || age < 0 {
		t.began, t.lines = now, 0
	}
	if t.lines == LinesPerMinute {
		t.suppressed++
		return 0, false
	}
	suppressed, t.suppressed = t.suppressed, 0
	t.lines++
	return suppressed, true
}
