package caddymodule

import (
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/limitkeeper/limitkeeper/adminapi/dashboard"
)

// dropSession takes every session of the dashboard out of a request. Browsers send the
// session to every port of a host, and only the dashboard may have it.
func dropSession(h http.Header) {
	editLines(h, "Cookie", func(line string) string {
		if !strings.Contains(line, dashboard.CookieName) {
			return line
		}
		return withoutCookies(line, func(name, _ string) bool { return name == dashboard.CookieName })
	})
}

// withoutCookies returns a Cookie line without the cookies that drop names, "" when no
// cookie is left. The other cookies keep their bytes and their order.
func withoutCookies(line string, drop func(name, value string) bool) string {
	rest := withoutPairs(line, ";", func(pair string) bool { return drop(cutCookie(pair)) })
	if rest == line {
		return line
	}
	if strings.TrimSpace(rest) == "" {
		return ""
	}
	return strings.TrimLeft(rest, " ") // every pair after the first begins with a space
}

// withoutPairs returns a list without the pairs that drop names. It reads the list once,
// whatever the number of pairs: a client sends as many as fit into a header, and needs no
// key for it.
func withoutPairs(list, sep string, drop func(pair string) bool) string {
	kept := make([]byte, 0, len(list)+len(sep))
	for pair := range strings.SplitSeq(list, sep) {
		if !drop(pair) {
			kept = append(append(kept, pair...), sep...)
		}
	}
	if len(kept) == len(list)+len(sep) {
		return list
	}
	return string(kept[:max(0, len(kept)-len(sep))])
}

// editLines changes the lines of a header field, and removes a line that edit empties.
func editLines(h http.Header, field string, edit func(line string) string) {
	lines := h[field]
	first := slices.IndexFunc(lines, func(line string) bool { return edit(line) != line })
	if first < 0 {
		return
	}
	kept := slices.Clone(lines[:first])
	for _, line := range lines[first:] {
		if edited := edit(line); edited != "" || line == "" {
			kept = append(kept, edited)
		}
	}
	setLines(h, field, kept)
}

// strip takes the credential out of the request and leaves everything else as it
// came, byte for byte and in its order.
func (c credential) strip(r *http.Request) {
	switch c.in {
	case inHeader, inBearer:
		if len(r.Header[c.field]) == 1 {
			delete(r.Header, c.field)
			return
		}
		setLines(r.Header, c.field, slices.Delete(slices.Clone(r.Header[c.field]), c.line, c.line+1))
	case inCookie:
		lines := slices.Clone(r.Header[c.field])
		if rest := withoutPair(lines[c.line], ";", c.part); strings.TrimSpace(rest) != "" {
			lines[c.line] = strings.TrimLeft(rest, " ") // the pair behind the first has one in front
		} else {
			lines = slices.Delete(lines, c.line, c.line+1)
		}
		setLines(r.Header, c.field, lines)
	case inQuery:
		setQuery(r, withoutPair(r.URL.RawQuery, "&", c.part))
	}
}

// isIn reports whether the value of a query pair is the credential.
func (c credential) isIn(pair string) bool {
	_, v, _ := strings.Cut(pair, "=")
	v, err := url.QueryUnescape(v)
	return err == nil && v == c.secret
}

// withoutPair returns a list without its i-th part.
func withoutPair(list, sep string, i int) string {
	return strings.Join(slices.Delete(strings.Split(list, sep), i, i+1), sep)
}

// setLines sets the values of a header field, none at all removes it.
func setLines(h http.Header, field string, lines []string) {
	if len(lines) == 0 {
		delete(h, field)
		return
	}
	h[field] = lines
}

// setQuery sets the query where Caddy and its handlers read it.
func setQuery(r *http.Request, query string) {
	r.URL.RawQuery = query
	r.RequestURI, _, _ = strings.Cut(r.RequestURI, "?")
	if query != "" {
		r.RequestURI += "?" + query
	}
}

// forgetOriginal takes a credential out of what Caddy keeps of the original
// request: the placeholders {http.request.orig_uri…}, and what error routes get
// back.
func forgetOriginal(r *http.Request, repl *caddy.Replacer, c credential) {
	if c.in != inQuery {
		return
	}
	o, ok := r.Context().Value(caddyhttp.OriginalRequestCtxKey).(http.Request)
	if !ok || o.URL == nil {
		return
	}
	o.URL.RawQuery = withoutPairs(o.URL.RawQuery, "&", c.isIn)
	uri, _, _ := strings.Cut(o.RequestURI, "?")
	if o.URL.RawQuery != "" {
		uri += "?" + o.URL.RawQuery
	}
	repl.Set("http.request.orig_uri", uri)
}
