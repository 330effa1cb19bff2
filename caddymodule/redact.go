package caddymodule

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"github.com/caddyserver/caddy/v2/modules/logging"
	"go.uber.org/zap"
	"go.uber.org/zap/buffer"
	"go.uber.org/zap/zapcore"
	"golang.org/x/term"

	"github.com/limitkeeper/limitkeeper/core/secrets"
)

func init() { caddy.RegisterModule(new(LogEncoder)) }

// redacted replaces credentials in logs, as in Caddy's own logs.
const redacted = "REDACTED"

// LogEncoder writes log entries without keys: `format limitkeeper` in the Caddyfile. A server with an access log, error routes or the level
// DEBUG needs it in every log that gets entries of the HTTP app, and so does `keep_key`.
//
// Keys at the places where a gateway looks for them become REDACTED. Secrets elsewhere are masked if they
// have the form of a key of Limitkeeper.
type LogEncoder struct {
	// The encoder that writes the entry without keys, such as `filter`. Default: `console` for a terminal, else `json`.
	WrappedRaw json.RawMessage `json:"wrap,omitempty" caddy:"namespace=caddy.logging.encoders inline_key=format"`

	zapcore.Encoder `json:"-"` // of WrappedRaw

	ctx caddy.Context
}

// CaddyModule implements [caddy.Module].
func (*LogEncoder) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "caddy.logging.encoders.limitkeeper", New: func() caddy.Module { return new(LogEncoder) }}
}

// UnmarshalCaddyfile implements [caddyfile.Unmarshaler]:
//
//	limitkeeper [<encoder> ...]
func (e *LogEncoder) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	d.Next() // the encoder's name
	if !d.NextArg() {
		return nil
	}
	name := d.Val()
	wrapped, err := caddyfile.UnmarshalModule(d, "caddy.logging.encoders."+name)
	if err != nil {
		return err
	}
	e.WrappedRaw = caddyconfig.JSONModuleObject(wrapped, "format", name, nil)
	return nil
}

// Provision implements [caddy.Provisioner].
func (e *LogEncoder) Provision(ctx caddy.Context) error {
	e.ctx = ctx
	if e.WrappedRaw == nil {
		json := new(logging.JSONEncoder)
		e.Encoder = json
		return json.Provision(ctx)
	}
	wrapped, err := ctx.LoadModule(e, "WrappedRaw")
	if err == nil {
		e.Encoder = wrapped.(zapcore.Encoder)
	}
	return err
}

// ConfigureDefaultFormat implements [caddy.ConfiguresFormatterDefault].
func (e *LogEncoder) ConfigureDefaultFormat(w caddy.WriterOpener) error {
	if wrapped, ok := e.Encoder.(caddy.ConfiguresFormatterDefault); ok {
		return wrapped.ConfigureDefaultFormat(w)
	}
	if e.WrappedRaw != nil || !caddy.IsWriterStandardStream(w) || !term.IsTerminal(int(os.Stderr.Fd())) {
		return nil
	}
	console := new(logging.ConsoleEncoder)
	e.Encoder = console
	return console.Provision(e.ctx)
}

// Clone implements [zapcore.Encoder].
func (e *LogEncoder) Clone() zapcore.Encoder { return &LogEncoder{Encoder: e.Encoder.Clone()} }

// AddObject implements [zapcore.ObjectEncoder].
func (e *LogEncoder) AddObject(key string, object zapcore.ObjectMarshaler) error {
	return e.Encoder.AddObject(key, logSources.object(object))
}

// AddString implements [zapcore.ObjectEncoder].
func (e *LogEncoder) AddString(key, value string) {
	e.Encoder.AddString(key, logSources.text(value))
}

// EncodeEntry implements [zapcore.Encoder].
func (e *LogEncoder) EncodeEntry(entry zapcore.Entry, fields []zapcore.Field) (*buffer.Buffer, error) {
	entry.Message = logSources.text(entry.Message)
	clean := &LogEncoder{Encoder: e.Encoder.Clone()}
	for _, f := range fields {
		if err, ok := f.Interface.(error); ok && f.Type == zapcore.ErrorType && logSources.text(err.Error()) != err.Error() {
			clean.AddString(f.Key, err.Error()) // without the stack and the causes, which have the key, too
			continue
		}
		f.AddTo(clean)
	}
	line, err := clean.Encoder.EncodeEntry(entry, nil)
	if err != nil {
		return nil, err
	}
	text := line.String()
	if masked := secrets.MaskSecrets(text); masked != text {
		line.Reset()
		line.AppendString(masked)
	}
	return line, nil
}

var errLogsKeys = errors.New("API keys would appear in the logs, so each log that gets entries of http needs the format limitkeeper: a server with limitkeeper or " +
	"limitkeeper_api has an access log, handle_errors, keep_key, errors or the level DEBUG, or a handler that is not behind limitkeeper, such as another reverse_proxy. " +
	"Put a block log with the line \"format limitkeeper\" into the global options, and the line into the block of each other log")

// checkLogs reports whether each log that gets entries of the HTTP app has a [LogEncoder]. It returns an error if another log could get keys:
// if the server logs requests, or if a handler may fail that is not behind a gateway. Otherwise the HTTP app logs a request only when a
// handler behind a gateway fails, and the gateway answers and logs that itself. It adds the sources to the places that the encoders redact.
func checkLogs(ctx caddy.Context, sources []KeySource, mayFail bool) (all bool, err error) {
	srv, ok := ctx.Value(caddyhttp.ServerCtxKey).(*caddyhttp.Server)
	if !ok {
		return true, nil // not in an HTTP server: nothing logs its requests
	}
	logSources.add(sources)
	others := 0
	look := func(log zapcore.ObjectEncoder) error {
		if _, ok := log.(*LogEncoder); !ok {
			others++
		}
		return nil
	}
	// Each log adds the field to a clone of its encoder. Nothing is written.
	log := ctx.Logger(new(caddyhttp.App))
	log.With(zap.Inline(zapcore.ObjectMarshalerFunc(look)))
	if others == 0 {
		return true, nil
	}
	if srv.Logs != nil || srv.Errors != nil && len(srv.Errors.Routes) > 0 || mayFail || log.Core().Enabled(zapcore.DebugLevel) {
		return false, errLogsKeys
	}
	return false, nil
}

// logSources are the places of keys of all gateways since the start of the process. Caddy opens the logs of a config before
// it loads the gateways.
var logSources sourceSet

// sourceSet is a set of places of keys that grows.
type sourceSet struct {
	mu   sync.RWMutex
	list []KeySource // in their normal form
}

func (s *sourceSet) add(sources []KeySource) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, source := range sources {
		if source = source.normal(); !slices.Contains(s.list, source) {
			s.list = append(s.list, source)
		}
	}
}

func (s *sourceSet) get() []KeySource {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.list
}

// object returns a request or a header without the keys at the places of s, and another object as it is.
func (s *sourceSet) object(object zapcore.ObjectMarshaler) zapcore.ObjectMarshaler {
	switch o := object.(type) {
	case caddyhttp.LoggableHTTPRequest:
		clean := *o.Request
		clean.Header = s.header(clean.Header)
		clean.RequestURI = s.text(clean.RequestURI)
		o.Request = &clean
		return o
	case caddyhttp.LoggableHTTPHeader:
		o.Header = s.header(o.Header)
		return o
	}
	return object
}

// header returns h without the keys at the places of s, and h itself if it has none.
func (s *sourceSet) header(h http.Header) http.Header {
	clean, own := h, false
	for name, values := range h {
		for i, value := range values {
			if without := s.value(name, value); without != value {
				if !own {
					clean, own = h.Clone(), true
				}
				clean[name][i] = without
			}
		}
	}
	return clean
}

// value returns a value of a header field without the keys at the places of s.
func (s *sourceSet) value(field, value string) string {
	for _, source := range s.get() {
		switch {
		case source.field() != field:
		case source.In == inHeader:
			return redacted
		case source.In == inCookie:
			value = redactCookie(value, source.Name)
		case bearerToken(strings.TrimSpace(value)) != "":
			return "Bearer " + redacted
		}
	}
	return s.text(value)
}

// redactCookie returns a Cookie line without the values of the cookies with a name.
func redactCookie(line, name string) string {
	return editPairs(line, ";", func(pair string) (string, bool) {
		if cookie, value := cutCookie(pair); cookie == name && value != "" {
			before, _, _ := strings.Cut(pair, "=")
			pair = before + "=" + redacted
		}
		return pair, true
	})
}

// text returns a text without the keys in the query of a URI: the values of parameters at the places of s become REDACTED.
func (s *sourceSet) text(text string) string {
	sources := s.get()
	path, query, ok := strings.Cut(text, "?")
	if !ok || !slices.ContainsFunc(sources, func(k KeySource) bool { return k.In == inQuery }) {
		return text
	}
	return path + "?" + editPairs(query, "&", func(pair string) (string, bool) {
		k, _, _ := strings.Cut(pair, "=")
		if name, err := url.QueryUnescape(k); err == nil && slices.Contains(sources, KeySource{In: inQuery, Name: name}) {
			pair = k + "=" + redacted
		}
		return pair, true
	})
}

// Interface guards.
var (
	_ caddy.ConfiguresFormatterDefault = (*LogEncoder)(nil)
	_ caddy.Provisioner                = (*LogEncoder)(nil)
	_ caddyfile.Unmarshaler            = (*LogEncoder)(nil)
	_ zapcore.Encoder                  = (*LogEncoder)(nil)
)
