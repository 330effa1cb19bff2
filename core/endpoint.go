package core

import (
	"net/url"
	"path"
	"strings"
	"unicode"
	"unicode/utf8"
)

// maxPathLength is the length in bytes above which a path matches no pattern: it bounds the work of a match.
const maxPathLength = 2048

// endpointPattern selects requests by method and path, as in "GET,HEAD /v1/items*". A path without a method stands for every method. The path is
// matched as Caddy's matcher path does: in lower case, and a star at one end alone stands for any text. Any other star stands for text without a
// slash. No other character has a meaning.
type endpointPattern struct {
	methods string // with commas between them; "" for every method
	text    string // of the path, in lower case, without the stars of the shape
	shape   pathShape
}

// pathShape says where the stars of a path are. A decision reads it instead of the path.
type pathShape byte

const (
	noStar     pathShape = iota
	starLast             // one star, at the end
	starFirst            // one star, at the beginning
	starAround           // a star at each end, or a star alone
	starInside           // any other; the text has them
)

// parseEndpoint parses a pattern. problem is a phrase about the fault of the pattern, "" for a valid one.
func parseEndpoint(pattern string) (p endpointPattern, problem string) {
	methods, path, has := strings.Cut(pattern, " ")
	if !has {
		methods, path = "", pattern
	}
	for method := range strings.SplitSeq(methods, ",") {
		if has && (method == "" || strings.Trim(method, "ABCDEFGHIJKLMNOPQRSTUVWXYZ-") != "") {
			return p, "must begin with methods in upper case, such as GET,HEAD /v1/items*, or with a path"
		}
	}
	switch {
	case !strings.HasPrefix(path, "/") && !strings.HasPrefix(path, "*"):
		return p, "must have a path that begins with / or *"
	case strings.ContainsAny(path, `[]{}; `+ambiguous), strings.Contains(path, "//"), !isPlain(path):
		return p, `must have a plain path: decoded, without query, spaces, empty or dot segments, and without ? # [ ] { } \ % ;`
	}
	text, shape := shapeOf(strings.ToLower(path))
	return endpointPattern{methods, text, shape}, ""
}

func shapeOf(path string) (text string, shape pathShape) {
	inner := strings.Trim(path, "*")
	stars := len(path) - len(inner)
	switch first, last := strings.HasPrefix(path, "*"), strings.HasSuffix(path, "*"); {
	case strings.Contains(inner, "*"):
	case path == "*", stars == 2 && first && last:
		return inner, starAround
	case stars == 1 && first:
		return inner, starFirst
	case stars == 1:
		return inner, starLast
	case stars == 0:
		return inner, noStar
	}
	return path, starInside
}

// matches reports whether a request is selected. The path is a result of [normalPath].
func (p *endpointPattern) matches(method, normal string) bool {
	return p.matchesPath(normal) && (p.methods == "" || hasWord(p.methods, method))
}

func (p *endpointPattern) matchesPath(normal string) bool {
	switch p.shape {
	case noStar:
		return normal == p.text
	case starLast:
		return strings.HasPrefix(normal, p.text)
	case starFirst:
		return strings.HasSuffix(normal, p.text)
	case starAround:
		return strings.Contains(normal, p.text)
	}
	return matchSegments(p.text, normal)
}

func hasWord(words, word string) bool {
	for w := range strings.SplitSeq(words, ",") {
		if w == word {
			return true
		}
	}
	return false
}

// matchSegments matches a path with a pattern, as [path.Match] does. That function takes time in proportion to the length of the path times that of
// the pattern: 15 ms for the longest.
func matchSegments(pattern, path string) bool {
	for {
		wanted, wantedRest, more := strings.Cut(pattern, "/")
		segment, rest, has := strings.Cut(path, "/")
		if more != has || !matchStars(wanted, segment) {
			return false
		}
		if !more {
			return true
		}
		pattern, path = wantedRest, rest
	}
}

// matchStars matches a text with a pattern in which each star stands for any text.
func matchStars(pattern, text string) bool {
	first, pattern, star := strings.Cut(pattern, "*")
	if !star {
		return text == first
	}
	text, ok := strings.CutPrefix(text, first)
	for ok {
		part, rest, more := strings.Cut(pattern, "*")
		if !more {
			return strings.HasSuffix(text, part)
		}
		_, text, ok = strings.Cut(text, part)
		pattern = rest
	}
	return false
}

// ambiguous are characters that programs read in different ways when they are in a decoded path.
const ambiguous = `\?#%`

// normalPath returns the form of a path that patterns are compared with: decoded, in lower case, without query and with single slashes. ok is
// false for a path that two programs may read as two different ones: with two slashes at the beginning, dot segments, encoded slashes, backslashes,
// path parameters (;), an escape within an escape, or control characters. The path is as a client sends it, with its escapes.
func normalPath(text string) (normal string, ok bool) {
	if len(text) > maxPathLength {
		return "", false
	}
	if isNormal(text) {
		return text, true
	}
	text = before(text, "?#")
	decoded, err := url.PathUnescape(text)
	if err != nil || strings.Contains(strings.ToLower(text), "%2f") || strings.ContainsAny(decoded, ";"+ambiguous) || strings.HasPrefix(decoded, "//") ||
		!isPlain(decoded) {
		return "", false
	}
	if !strings.HasPrefix(decoded, "/") {
		return strings.ToLower(decoded), true
	}
	return clean(decoded), true
}

// before returns a text up to the first of some characters.
func before(text, characters string) string {
	if i := strings.IndexAny(text, characters); i >= 0 {
		return text[:i]
	}
	return text
}

// clean returns a decoded path in lower case, with its dot segments resolved and with single slashes. A slash at its end stays.
func clean(decoded string) string {
	c := path.Clean(strings.ToLower(decoded))
	if c != "/" && strings.HasSuffix(decoded, "/") {
		c += "/"
	}
	return c
}

// isNormal reports whether one look at each byte shows that a path is its own normal form, as for most paths: BenchmarkQuote takes 220 ns in place of 420.
func isNormal(text string) bool {
	last := byte(0)
	for i := range len(text) {
		switch c := text[i]; {
		case 'a' <= c && c <= 'z', '0' <= c && c <= '9', c == '-', c == '_':
		case c == '/' && last != '/', c == '.' && last != '/' && last != '.' && i > 0:
		default:
			return false
		}
		last = text[i]
	}
	return text != ""
}

// caddyPath returns a path as Caddy's matcher path reads it: decoded, in lower case, with its dot segments resolved.
func caddyPath(text string) string {
	text = before(text, "?#")
	if decoded, err := url.PathUnescape(text); err == nil {
		text = decoded
	}
	return clean(text)
}

// lenientPath returns a path as a program may read it that decodes up to three times, takes a backslash for a slash, drops path parameters (;), and
// ends the path at a null byte and at a ? or # that was escaped.
func lenientPath(text string) string {
	text = before(strings.ReplaceAll(caddyPath(caddyPath(text)), `\`, "/"), "?#\x00")
	segments := strings.Split(text, "/")
	for i, s := range segments {
		segments[i], _, _ = strings.Cut(s, ";")
	}
	return caddyPath(strings.Join(segments, "/"))
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
