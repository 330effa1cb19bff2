package dashboard

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
)

// linesPerMinute bounds the log lines of each message and reason: many wrong passwords must
// not fill the disk, and must not hide another message.
const linesPerMinute = 60

// limitedLog writes at most [linesPerMinute] lines of each message and reason in any minute.
// The next line says how many were suppressed since the last.
type limitedLog struct {
	log      *slog.Logger
	throttle *core.Throttle

	mu         sync.Mutex
	suppressed map[string]int // lines, by message and reason
}

func newLimitedLog(log *slog.Logger) *limitedLog {
	return &limitedLog{log: log, throttle: core.NewThrottle(linesPerMinute, time.Minute, time.Now()), suppressed: map[string]int{}}
}

// write logs the message, or counts it as suppressed. It calls attrs only if it logs.
func (l *limitedLog) write(level slog.Level, now time.Time, message string, reason slog.Attr, attrs func() []slog.Attr) {
	kind := message + ": " + reason.Value.String()
	_, admitted := l.throttle.Admit(kind, now)
	l.mu.Lock()
	suppressed := l.suppressed[kind]
	if admitted {
		delete(l.suppressed, kind)
	} else {
		l.suppressed[kind]++
	}
	l.mu.Unlock()
	if admitted {
		l.log.LogAttrs(context.Background(), level, message, append(attrs(), reason, slog.Int("suppressed", suppressed))...)
	}
}

// log writes a line about the request, see [limitedLog].
func (q *request) log(level slog.Level, message string, reason slog.Attr, attrs func() []slog.Attr) {
	now := time.Now()
	if q.svc != nil {
		now = q.svc.Now()
	}
	q.s.limited.write(level, now, message, reason, attrs)
}

// logAuth logs that a browser signed in or was refused. account returns the id of the account;
// logAuth calls it only if it logs.
func (q *request) logAuth(level slog.Level, message, reason string, account func() string) {
	q.log(level, message, slog.String("reason", reason), func() []slog.Attr {
		return []slog.Attr{slog.String("account", account()), slog.String("address", q.s.config.ClientIP(q.r))}
	})
}

// accountNamed returns the id of the account with the name, "" when there is none. Only the id
// of an account that exists is logged: a person may type a password into the field of the name.
func (q *request) accountNamed(name string) string {
	a, err := q.svc.AccountByName(q.r.Context(), name)
	if err != nil {
		return ""
	}
	return a.ID
}
