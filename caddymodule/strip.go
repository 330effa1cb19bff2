package caddymodule

import (
	"context"
	"io"
	"net/http"
	"slices"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/limitkeeper/limitkeeper/adminapi/dashboard"
	"github.com/limitkeeper/limitkeeper/core/secrets"
	"github.com/limitkeeper/limitkeeper/core/service"
)

// strip removes secret, the used key value, and other key values from a request. With observe, a secret that
// is no key and does not have its form stays, because it may be a credential of the upstream.
func (g *Gateway) strip(r *http.Request, repl *caddy.Replacer, secret string, v *requestState) {
	ctx := r.Context()
	form := g.hasKeyForm(ctx, secret)
	s := stripper{secret: secret, ours: form || v.decision.Key != nil, sources: g.Keys, gateway: g, ctx: ctx}
	// An unknown key is no secret. The search for its copies would cost CPU time that anybody
	// could cause.
	s.masks = s.ours && (v.decision.Outcome != service.Unknown || g.passes(v))
	if g.Observe && !s.ours {
		s.secret = ""
	}
	s.strip(r)
	s.stripOriginal(r, repl)
}

// usualSources are the default places of a key, in their normal form.
var usualSources = []KeySource{defaultKeySources()[0].normal(), defaultKeySources()[1].normal()}

// stripStray removes keys of Limitkeeper from the usual places of a request that needs none. Other values there may be credentials of the upstream.
func (g *Gateway) stripStray(r *http.Request, repl *caddy.Replacer) {
	s := stripper{sources: usualSources, ctx: r.Context()}
	if g.account.Load() != nil { // else any value would have the form of a key
		s.gateway = g
	}
	s.strip(r)
	s.stripOriginal(r, repl)
}

// stripper removes key values from a request, so that no handler behind the gateway has or logs
// them.
type stripper struct {
	secret  string      // the used key value, "" when it stays in the request
	ours    bool        // secret is a key or has the form of one, so its copies are secrets too
	masks   bool        // masks the copies inside other values
	sources []KeySource // in their normal form

	gateway *Gateway        // knows the prefixes of the account; nil: the account has the default prefix only
	ctx     context.Context // of the request
}

// strip removes each header line, cookie and query parameter whose whole value is a key value
// (isKeyAt, isUsedKey), and masks the copies of the used key value inside other values.
// Everything else keeps its bytes and its order.
func (s *stripper) strip(r *http.Request) {
	for field, lines := range r.Header {
		if s.isPlace(field) || slices.ContainsFunc(lines, s.mayHold) {
			editLines(r.Header, field, func(line string) string { return s.line(field, line) })
		}
	}
	if len(r.Trailer) > 0 && r.Body != nil {
		kept := *s // for this rare request alone: s stays on the stack
		r.Body = &trailerStripper{r.Body, &kept, r.Trailer}
	}
	if query := s.query(r.URL.RawQuery); query != r.URL.RawQuery {
		setQuery(r, query)
	}
}

// trailerStripper is a body that removes key values from the trailers of its request. They are there when the body has been read
// (RFC 9110 section 6.5), before a handler that forwards them.
type trailerStripper struct {
	io.ReadCloser
	stripper *stripper
	trailer  http.Header
}

// Read implements [io.Reader].
func (b *trailerStripper) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err == io.EOF {
		for field := range b.trailer {
			editLines(b.trailer, field, func(line string) string { return b.stripper.line(field, line) })
		}
	}
	return n, err
}

// stripOriginal does the same with the query of the original request, which Caddy keeps for
// the placeholders {http.request.orig_uri…} and restores before it runs error routes.
func (s *stripper) stripOriginal(r *http.Request, repl *caddy.Replacer) {
	original, ok := r.Context().Value(caddyhttp.OriginalRequestCtxKey).(http.Request)
	if !ok || original.URL == nil {
		return
	}
	query := s.query(original.URL.RawQuery)
	if query == original.URL.RawQuery {
		return
	}
	setQuery(&original, query)
	repl.Set("http.request.orig_uri", original.RequestURI)
	// Assign to *r: Caddy's error handling reads this request.
	*r = *r.WithContext(context.WithValue(r.Context(), caddyhttp.OriginalRequestCtxKey, original))
}

// mayHold reports whether a text may hold a copy of the used key value. Cheap pre-check that is false for most texts.
func (s *stripper) mayHold(text string) bool {
	return s.ours && (strings.IndexByte(text, '%') >= 0 || strings.Contains(text, s.secret))
}

// isPlace reports whether keys are looked for in a header field.
func (s *stripper) isPlace(field string) bool {
	return slices.ContainsFunc(s.sources, func(place KeySource) bool { return place.field() == field })
}

// isUsedKey reports whether a value, in any place, is the used key value. A used value that is no
// key and does not have its form may be an ordinary word: only isKeyAt removes it.
func (s *stripper) isUsedKey(value string) bool { return s.ours && value == s.secret }

// isKeyAt reports whether the value of a place is a key value to remove: the used one, or any
// other with the form of a key in a place where keys are looked for.
func (s *stripper) isKeyAt(value string, place KeySource) bool {
	if s.isUsedKey(value) {
		return true
	}
	return value != "" && slices.Contains(s.sources, place) && (value == s.secret || s.gateway.hasKeyForm(s.ctx, value))
}

// line returns a line of a header field without key values, "" when the line was one.
func (s *stripper) line(field, line string) string {
	value := strings.TrimSpace(line)
	token := bearerToken(value)
	if s.isKeyAt(value, KeySource{In: inHeader, Name: field}) || s.isUsedKey(token) ||
		field == "Authorization" && s.isKeyAt(token, KeySource{In: inBearer}) {
		return ""
	}
	if field == "Cookie" {
		line = withoutCookies(line, func(name, value string) bool {
			return s.isKeyAt(value, KeySource{In: inCookie, Name: name})
		})
	}
	return s.mask(line)
}

// query returns a query without key values.
func (s *stripper) query(query string) string {
	if !s.mayHold(query) && !slices.ContainsFunc(s.sources, func(place KeySource) bool { return place.In == inQuery }) {
		return query
	}
	return s.mask(editPairs(query, "&", func(pair string) (string, bool) {
		name, value := cutParam(pair)
		return pair, !s.isKeyAt(value, KeySource{In: inQuery, Name: name}) && (value != "" || !s.isUsedKey(name))
	}))
}

// mask returns a text with the copies of the used key value masked.
func (s *stripper) mask(text string) string {
	if !s.masks {
		return text
	}
	return secrets.ReplaceSecret(text, s.secret, redacted)
}

// dropDashboardCookies removes every cookie of the dashboard from a request. Browsers send a
// cookie to every port of a host, and only the dashboard may have these.
func dropDashboardCookies(h http.Header) {
	editLines(h, "Cookie", func(line string) string {
		if !strings.Contains(line, dashboard.CookieName) { // BrowserCookieName begins with it
			return line
		}
		return withoutCookies(line, func(name, _ string) bool { return dashboard.OwnsCookie(name) })
	})
}

// withoutCookies returns a Cookie line without the cookies for which drop returns true, "" when no
// cookie is left. The other cookies keep their bytes and their order.
func withoutCookies(line string, drop func(name, value string) bool) string {
	rest := editPairs(line, ";", func(pair string) (string, bool) { return pair, !drop(cutCookie(pair)) })
	if rest == line {
		return line
	}
	if strings.TrimSpace(rest) == "" {
		return ""
	}
	return strings.TrimLeft(rest, " ") // every pair after the first begins with a space
}

// editPairs returns a list with its pairs changed, and without those for which edit returns false. One pass: an unauthenticated
// client can send thousands of pairs.
func editPairs(list, sep string, edit func(pair string) (edited string, keep bool)) string {
	edited := make([]byte, 0, len(list)+len(sep))
	for pair := range strings.SplitSeq(list, sep) {
		if pair, keep := edit(pair); keep {
			edited = append(append(edited, pair...), sep...)
		}
	}
	edited = edited[:max(0, len(edited)-len(sep))]
	if string(edited) == list {
		return list
	}
	return string(edited)
}

// editLines changes the lines of a header field, and removes a line that edit empties.
func editLines(h http.Header, field string, edit func(line string) string) {
	lines := h[field]
	var kept []string // set with the first change: an outer handler may share lines
	changed := false
	for i, line := range lines {
		edited := edit(line)
		if !changed && edited != line {
			changed, kept = true, slices.Clone(lines[:i])
		}
		if changed && (edited != "" || line == "") {
			kept = append(kept, edited)
		}
	}
	switch {
	case len(kept) > 0:
		h[field] = kept
	case changed:
		delete(h, field)
	}
}

// setQuery sets the query where Caddy and its handlers read it.
func setQuery(r *http.Request, query string) {
	r.URL.RawQuery = query
	r.RequestURI, _, _ = strings.Cut(r.RequestURI, "?")
	if query != "" {
		r.RequestURI += "?" + query
	}
}
