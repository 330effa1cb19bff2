package caddymodule

import (
	"fmt"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"sync"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/limitkeeper/limitkeeper/core"
)

// redacted replaces credentials in logs, as in Caddy's own logs.
const redacted = "REDACTED"

// The fields of [caddyhttp.Server] with the loggers of requests. They are variables so that a test
// can simulate a Caddy version with other names.
var (
	accessLoggerField = "accessLogger"
	errorLoggerField  = "errorLogger"
)

// redactLogs keeps credentials out of the access log and the error log of the HTTP server of
// ctx. The error means that it cannot, and that the config must be refused.
//
// Caddy copies the header and the URI of a request for its logs before any handler runs, and
// its filters belong to the configured logs, which a handler cannot reach. So the guard finds
// the two loggers of the server by the names of their fields, and wraps them in place.
func redactLogs(ctx caddy.Context, sources []KeySource) error {
	srv, ok := ctx.Value(caddyhttp.ServerCtxKey).(*caddyhttp.Server)
	if !ok {
		return nil // not in an HTTP server: nothing logs its requests
	}
	if err := guardLogger(srv, errorLoggerField, sources); err != nil {
		return err
	}
	if srv.Logs == nil {
		return nil
	}
	return guardLogger(srv, accessLoggerField, sources)
}

// guardLogger wraps one logger of a server, or adds the sources to the guard that
// wraps it already.
func guardLogger(srv *caddyhttp.Server, field string, sources []KeySource) error {
	f := reflect.ValueOf(srv).Elem().FieldByName(field)
	if !f.IsValid() || f.Type() != reflect.TypeFor[*zap.Logger]() || f.IsNil() {
		return fmt.Errorf("API keys would appear in the logs: the HTTP server of this Caddy version has no logger %q: build with the Caddy version in Limitkeeper's go.mod", field)
	}
	logger := (*zap.Logger)(f.UnsafePointer())
	if g, ok := logger.Core().(*redactorCore); ok {
		g.guard.add(sources)
		return nil
	}
	g := &redactor{}
	g.add(sources)
	*logger = *logger.WithOptions(zap.WrapCore(func(c zapcore.Core) zapcore.Core {
		return &redactorCore{Core: c, guard: g}
	}))
	return nil
}

// redactor holds the places of credentials in the requests of a server.
type redactor struct {
	mu      sync.RWMutex
	sources []KeySource // in their normal form
}

func (g *redactor) add(sources []KeySource) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, s := range sources {
		if s = s.normal(); !slices.Contains(g.sources, s) {
			g.sources = append(g.sources, s)
		}
	}
}

// value returns a value of a header field without the keys of its sources.
func (g *redactor) value(field, value string) string {
	for _, s := range g.sources {
		switch {
		case s.field() != field:
		case s.In == inHeader:
			return redacted
		case s.In == inCookie:
			value = redactCookie(value, s.Name)
		case bearerToken(strings.TrimSpace(value)) != "":
			return "Bearer " + redacted
		}
	}
	return core.MaskSecrets(value)
}

// redactCookie returns a Cookie line without the values of the cookies with a name.
func redactCookie(line, name string) string {
	pairs := strings.Split(line, ";")
	for i, pair := range pairs {
		if cookie, value := cutCookie(pair); cookie == name && value != "" {
			before, _, _ := strings.Cut(pair, "=")
			pairs[i] = before + "=" + redacted
		}
	}
	return strings.Join(pairs, ";")
}

// request returns a copy of a request without credentials, for a log.
func (g *redactor) request(r *http.Request) *http.Request {
	clean := *r
	clean.Header = g.header(r.Header)
	clean.RequestURI = g.uri(r.RequestURI)
	return &clean
}

// header returns h without credentials: keys at the places of sources become REDACTED, and secrets in other values are
// masked. It returns h itself if h has no credentials.
func (g *redactor) header(h http.Header) http.Header {
	g.mu.RLock()
	defer g.mu.RUnlock()
	clean, own := h, false
	for name, values := range h {
		for i, value := range values {
			masked := g.value(name, value)
			if masked == value {
				continue
			}
			if !own {
				clean, own = h.Clone(), true
			}
			clean[name][i] = masked
		}
	}
	return clean
}

// uri returns a request URI without credentials: values of credential parameters become REDACTED,
// and other secrets are masked.
func (g *redactor) uri(uri string) string {
	g.mu.RLock()
	defer g.mu.RUnlock()
	path, query, ok := strings.Cut(uri, "?")
	if !ok {
		return core.MaskSecrets(uri)
	}
	clean := make([]byte, 0, len(uri))
	clean = append(clean, path...)
	sep := byte('?')
	for pair := range strings.SplitSeq(query, "&") {
		clean = append(clean, sep)
		sep = '&'
		k, _, _ := strings.Cut(pair, "=")
		if name, err := url.QueryUnescape(k); err == nil && slices.Contains(g.sources, KeySource{In: inQuery, Name: name}) {
			pair = k + "=" + redacted
		}
		clean = append(clean, pair...)
	}
	return core.MaskSecrets(string(clean))
}

// redactorCore redacts the fields of every entry before they are encoded.
type redactorCore struct {
	zapcore.Core
	guard *redactor
}

// With implements [zapcore.Core].
func (c *redactorCore) With(fields []zapcore.Field) zapcore.Core {
	return &redactorCore{Core: c.Core.With(c.guard.fields(fields)), guard: c.guard}
}

// Check implements [zapcore.Core]. Write calls Check of the inner core, which selects the logs for
// an entry.
func (c *redactorCore) Check(e zapcore.Entry, ce *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if c.Enabled(e.Level) {
		return ce.AddCore(e, c)
	}
	return ce
}

// Write implements [zapcore.Core].
func (c *redactorCore) Write(e zapcore.Entry, fields []zapcore.Field) error {
	e.Message = core.MaskSecrets(e.Message)
	if ce := c.Core.Check(e, nil); ce != nil {
		ce.Write(c.guard.fields(fields)...)
	}
	return nil
}

// fields returns the fields of an entry without credentials.
func (g *redactor) fields(fields []zapcore.Field) []zapcore.Field {
	clean := make([]zapcore.Field, len(fields))
	for i, f := range fields {
		clean[i] = g.field(f)
	}
	return clean
}

func (g *redactor) field(f zapcore.Field) zapcore.Field {
	switch v := f.Interface.(type) {
	case caddyhttp.LoggableHTTPRequest:
		v.Request = g.request(v.Request)
		f.Interface = v
	case caddyhttp.LoggableHTTPHeader:
		v.Header = g.header(v.Header)
		f.Interface = v
	case error:
		if s := v.Error(); core.MaskSecrets(s) != s {
			f = zap.String(f.Key, core.MaskSecrets(s))
		}
	}
	if f.Type == zapcore.StringType {
		f.String = core.MaskSecrets(f.String)
	}
	return f
}
