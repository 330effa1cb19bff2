package dashboard

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
)

// linesPerMinute bounds the log lines of each event: a storm of wrong passwords must not
// fill the disk, and must not hide another event.
const linesPerMinute = 60

// eventLog writes at most [linesPerMinute] lines of each event and reason in any minute.
// The next line says how many were left out since the last.
type eventLog struct {
	log      *slog.Logger
	throttle *core.Throttle

	mu         sync.Mutex
	suppressed map[string]int // lines, by event and reason
}

func newEventLog(log *slog.Logger) *eventLog {
	return &eventLog{log: log, throttle: core.NewThrottle(linesPerMinute, time.Minute, time.Now()), suppressed: map[string]int{}}
}

// write logs an event unless there were too many of it. It calls attrs only then.
func (l *eventLog) write(level slog.Level, now time.Time, event, reason string, attrs func() []slog.Attr) {
	kind := event + ": " + reason
	_, ok := l.throttle.Admit(kind, now)
	l.mu.Lock()
	n := l.suppressed[kind]
	if l.suppressed[kind] = 0; !ok {
		l.suppressed[kind] = n + 1
	}
	l.mu.Unlock()
	if ok {
		l.log.LogAttrs(context.Background(), level, event, append(attrs(), slog.String("reason", reason), slog.Int("suppressed", n))...)
	}
}

// logSignIn notes that a browser signed in or was refused. Only the id of an account that
// exists is logged: a person may type a password into the field of the name.
func (q *request) logSignIn(level slog.Level, event, reason, account, name string) {
	q.s.log.write(level, q.svc.Now(), event, reason, func() []slog.Attr {
		if account == "" {
			if a, err := q.svc.AccountByName(q.r.Context(), name); err == nil {
				account = a.ID
			}
		}
		return []slog.Attr{slog.String("account", account), slog.String("address", q.s.config.ClientIP(q.r))}
	})
}
