package caddymodule

import (
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/limitkeeper/limitkeeper/adminapi"
	"github.com/limitkeeper/limitkeeper/core"
)

// headerWriter adds the fields of the gateway to the answer of the handlers behind it, at the
// moment when its header is complete. Everything else passes through, informational answers
// too.
type headerWriter struct {
	caddyhttp.ResponseWriterWrapper
	verdict *requestState // which it is part of
	added   bool
}

// wrap returns a writer that adds to an answer what the verdict says of wrap and caching.
func (v *requestState) wrap(w http.ResponseWriter) *headerWriter {
	v.writer = headerWriter{ResponseWriterWrapper: caddyhttp.ResponseWriterWrapper{ResponseWriter: w}, verdict: v}
	return &v.writer
}

// add puts the fields of the gateway into the answer, once. RateLimit and
// RateLimit-Policy join what a handler behind has put there; the X-RateLimit
// fields have one value, and it is ours.
func (w *headerWriter) add() {
	if !w.added {
		w.added = true
		h := w.Header()
		w.verdict.headers.Set(h, &w.verdict.decision, w.verdict.at)
		w.verdict.setCaching(h)
	}
}

// setCaching keeps an answer to one caller from being served to another by a cache on the
// way. Vary joins the lines that a handler behind has set. An answer to a request with a key
// is private, unless a handler behind has set Cache-Control. The slices belong to this
// response, because an outer handler may modify them.
func (v *requestState) setCaching(h http.Header) {
	switch {
	case v.vary == "":
	case len(h["Vary"]) == 0:
		v.varyValue[0] = v.vary
		h["Vary"] = v.varyValue[:]
	default:
		h.Add("Vary", v.vary)
	}
	if v.outcome != outcomeMissing && len(h["Cache-Control"]) == 0 {
		v.cacheValue[0] = "private"
		h["Cache-Control"] = v.cacheValue[:]
	}
}

// headerFamilies are the values of the option headers.
var headerFamilies = map[string]adminapi.RateLimitHeaders{
	"all":         adminapi.XRateLimitHeaders | adminapi.IETFHeaders,
	"x-ratelimit": adminapi.XRateLimitHeaders,
	"ietf":        adminapi.IETFHeaders,
	"none":        0,
}

// varyOf returns the header fields in which a key is looked for, as the value of Vary. A query
// parameter needs none, because caches tell answers apart by the whole URL.
func varyOf(sources []KeySource) string {
	var fields []string
	for _, s := range sources {
		field := s.Name
		switch s.In {
		case inBearer:
			field = "Authorization"
		case inCookie:
			field = "Cookie"
		case inQuery:
			continue
		}
		if !slices.Contains(fields, field) {
			fields = append(fields, field)
		}
	}
	return strings.Join(fields, ", ")
}

// WriteHeader implements [http.ResponseWriter].
func (w *headerWriter) WriteHeader(status int) {
	if status >= http.StatusOK || status == http.StatusSwitchingProtocols {
		w.add()
	}
	w.ResponseWriterWrapper.WriteHeader(status)
}

// Write implements [http.ResponseWriter].
func (w *headerWriter) Write(p []byte) (int, error) {
	w.add()
	return w.ResponseWriterWrapper.Write(p)
}

// ReadFrom implements [io.ReaderFrom].
func (w *headerWriter) ReadFrom(r io.Reader) (int64, error) {
	w.add()
	return w.ResponseWriterWrapper.ReadFrom(r)
}

// FlushError flushes, as [http.ResponseController] asks for it.
func (w *headerWriter) FlushError() error {
	w.add()
	return http.NewResponseController(w.ResponseWriter).Flush()
}

// Flush implements [http.Flusher].
func (w *headerWriter) Flush() { _ = w.FlushError() }

// The refusals that no decision has.
var (
	errMissing  = &core.Error{Code: core.CodeUnauthorized, Message: "API key is required"}
	errInternal = &core.Error{Code: core.CodeInternal, Message: "Internal server error"}
)

// refusal returns the status of a request that may not pass, and what to tell.
func (v *requestState) refusal() (int, *core.Error) {
	switch v.outcome {
	case outcomeMissing:
		return http.StatusUnauthorized, errMissing
	case outcomeUnavailable:
		return http.StatusServiceUnavailable, core.ErrUnavailable
	case outcomeError:
		if e, ok := errors.AsType[*core.Error](v.err); ok && e.Code == core.CodeInvalidRequest {
			return http.StatusBadRequest, e
		}
		return http.StatusInternalServerError, errInternal
	case string(core.Disabled):
		return http.StatusForbidden, v.decision.Refusal()
	case string(core.Denied):
		return http.StatusTooManyRequests, v.decision.Refusal()
	}
	return http.StatusUnauthorized, v.decision.Refusal()
}

// refuse answers a request that may not pass, or hands it to the error routes.
func (g *Gateway) refuse(w http.ResponseWriter, v *requestState) error {
	status, e := v.refusal()
	h := w.Header()
	h.Set("Cache-Control", "no-store")
	switch status {
	case http.StatusUnauthorized:
		adminapi.SetChallenge(h, e.Code)
	case http.StatusServiceUnavailable:
		h.Set("Retry-After", "1")
	case http.StatusTooManyRequests:
		adminapi.SetRetryAfter(h, &v.decision, v.at)
	}
	v.headers.Set(h, &v.decision, v.at)
	if g.Errors {
		return caddyhttp.Error(status, errors.New(e.Message))
	}
	if v.decision.HasUsage() {
		adminapi.WriteValidation(w, status, &v.decision)
	} else {
		adminapi.WriteRefusal(w, status, e)
	}
	return nil
}

// Interface guards.
var (
	_ http.Flusher  = (*headerWriter)(nil)
	_ io.ReaderFrom = (*headerWriter)(nil)
)
