package dashboard

import (
	"context"
	"log/slog"
	"time"

	"github.com/limitkeeper/limitkeeper/internal/logthrottle"
)

// log writes a line about the request, at most [logthrottle.LinesPerMinute] of each message and reason: many wrong passwords must not fill
// the disk, and must not hide another message. The next line says how many were suppressed since the last. log calls attrs only if it writes.
func (q *request) log(level slog.Level, message string, reason slog.Attr, attrs func() []slog.Attr) {
	now := time.Now()
	if q.svc != nil {
		now = q.svc.Now()
	}
	of, _ := q.s.throttles.LoadOrStore(message+": "+reason.Value.String(), new(logthrottle.Throttle))
	if suppressed, ok := of.(*logthrottle.Throttle).Admit(now); ok {
		q.s.config.Logger.LogAttrs(context.Background(), level, message, append(attrs(), reason, slog.Int64("suppressed", suppressed))...)
	}
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
