package core

import (
	"net/url"
	"path"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// maxPathLength is the length in bytes above which a path matches no pattern: it bounds the work of a match.
const maxPathLength = 2048

// endpointPattern selects requests by method and path, as in "GET,HEAD /v1/items*". A path without a method stands for every method. The path is
// matched as Caddy's matcher path does: in lower case, with single slashes, and a star at one end alone for any text. Any other star stands for text
// without a slash. No other character has a meaning.
type endpointPattern struct {
	methods []string // nil: every method
	path    string   // in lower case
}

// parseEndpoint parses a pattern. problem says what is wrong with it, "" for nothing.
func parseEndpoint(text string) (p endpointPattern, problem string) {
	pattern := text
	if methods, after, has := strings.Cut(text, " "); has {
		p.methods, pattern = strings.Split(methods, ","), after
	}
	for _, method := range p.methods {
		if method == "" || strings.Trim(method, "ABCDEFGHIJKLMNOPQRSTUVWXYZ-") != "" {
			return p, "must begin with methods in upper case, such as GET,HEAD /v1/items*, or with a path"
		}
	}
	switch {
	case !strings.HasPrefix(pattern, "/") && !strings.HasPrefix(pattern, "*"):
		return p, "must have a path that begins with / or *"
	case strings.ContainsAny(pattern, `?#[]{}\%; `), strings.Contains(pattern, "//"), !isPlain(pattern):
		return p, `must have a plain path: decoded, without query, spaces, empty or dot segments, and without ? # [ ] { } \ % ;`
	}
	p.path = strings.ToLower(pattern)
	return p, ""
}

// matches reports whether a request is selected. The path is a result of [normalPath].
func (p *endpointPattern) matches(method, normal string) bool {
	if p.methods != nil && !slices.Contains(p.methods, method) {
		return false
	}
	inner := strings.Trim(p.path, "*")
	stars := len(p.path) - len(inner)
	switch first, last := strings.HasPrefix(p.path, "*"), strings.HasSuffix(p.path, "*"); {
	case p.path == "*":
		return true
	case strings.Contains(inner, "*"):
	case stars == 2 && first && last:
		return strings.Contains(normal, inner)
	case stars == 1 && first:
		return strings.HasSuffix(normal, inner)
	case stars == 1:
		return strings.HasPrefix(normal, inner)
	}
	match, _ := path.Match(p.path, normal) // a pattern without [ and \ is valid
	return match
}

// normalPath returns the form of a path that patterns are compared with: decoded, in lower case, without query and with single slashes. ok is
// false for a path that two programs may read as two different ones: with dot segments, encoded slashes, backslashes, path parameters (;), an
// escape within an escape, or control characters. The path is as a client sends it, with its escapes.
func normalPath(text string) (normal string, ok bool) {
	if len(text) > maxPathLength {
		return "", false
	}
	if i := strings.IndexAny(text, "?#"); i >= 0 {
		text = text[:i]
	}
	decoded, err := url.PathUnescape(text)
	if err != nil || strings.Contains(strings.ToLower(text), "%2f") || strings.ContainsAny(decoded, `\;%`) || !isPlain(decoded) {
		return "", false
	}
	decoded = strings.ToLower(decoded)
	if !strings.HasPrefix(decoded, "/") {
		return decoded, true
	}
	normal = path.Clean(decoded)
	if normal != "/" && strings.HasSuffix(decoded, "/") {
		normal += "/"
	}
	return normal, true
}

// isPlain reports whether a decoded path is valid UTF-8 without control characters and dot segments.
func isPlain(decoded string) bool {
	for segment := range strings.SplitSeq(decoded, "/") {
		if segment == "." || segment == ".." {
			return false
		}
	}
	return utf8.ValidString(decoded) && !strings.ContainsFunc(decoded, unicode.IsControl)
}
