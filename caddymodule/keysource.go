package caddymodule

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"golang.org/x/net/http/httpguts"
)

// The places in a request where a key may be.
const (
	inHeader = "header"
	inBearer = "bearer"
	inQuery  = "query"
	inCookie = "cookie"
)

// KeySource says where in a request the caller's key is looked for.
type KeySource struct {
	// The kind of place:
	//
	// - `header`: the whole value of a header field
	// - `bearer`: `Authorization: Bearer …`
	// - `query`: a parameter of the query
	// - `cookie`: the value of a cookie
	In string `json:"in"`

	// The name of the header field, query parameter or cookie. Not for `bearer`.
	Name string `json:"name,omitempty"`
}

// defaultKeySources are the places that are searched unless configured otherwise.
func defaultKeySources() []KeySource {
	return []KeySource{{In: inHeader, Name: "X-API-Key"}, {In: inBearer}}
}

// check returns what is wrong with the source.
func (s KeySource) check() error {
	switch s.In {
	case inBearer:
		if s.Name != "" {
			return fmt.Errorf("key source bearer takes no name, got %q", s.Name)
		}
	case inHeader, inCookie:
		if !httpguts.ValidHeaderFieldName(s.Name) {
			return fmt.Errorf("key source %s: %q is not a valid name", s.In, s.Name)
		}
		if s.In == inHeader && strings.EqualFold(s.Name, "Host") {
			return fmt.Errorf("key source header: Host cannot carry a key")
		}
	case inQuery:
		if s.Name == "" {
			return fmt.Errorf("key source query: the name of the parameter is missing")
		}
	default:
		return fmt.Errorf("key source %q: want header, bearer, query or cookie", s.In)
	}
	return nil
}

// normal returns the source in the form in which two of the same place are equal.
func (s KeySource) normal() KeySource {
	if s.In == inHeader {
		s.Name = http.CanonicalHeaderKey(s.Name)
	}
	return s
}

// find returns the first credential that the request has at this place, and where
// exactly it is. An empty value is no credential.
func (s KeySource) find(r *http.Request) (credential, bool) {
	switch s.In {
	case inHeader:
		return findHeader(r, s.Name)
	case inBearer:
		return findBearer(r)
	case inQuery:
		return findQuery(r, s.Name)
	default:
		return findCookie(r, s.Name)
	}
}

// findKey returns the credential of the first source that has one.
func findKey(r *http.Request, sources []KeySource) (credential, bool) {
	for _, s := range sources {
		if c, ok := s.find(r); ok {
			return c, true
		}
	}
	return credential{}, false
}

// credential is what a request presents as its key, and where.
type credential struct {
	secret string
	in     string
	field  string // the canonical name of the header field that it is in
	line   int    // of the field's values
	part   int    // of the pairs in the cookie line or the query
}

func findHeader(r *http.Request, name string) (credential, bool) {
	field := http.CanonicalHeaderKey(name) // which makes nothing of a name in its normal form
	for i, v := range r.Header[field] {
		if v = strings.TrimSpace(v); v != "" {
			return credential{secret: v, in: inHeader, field: field, line: i}, true
		}
	}
	return credential{}, false
}

func findBearer(r *http.Request) (credential, bool) {
	const field = "Authorization"
	for i, v := range r.Header[field] {
		scheme, secret, _ := strings.Cut(strings.TrimSpace(v), " ")
		if secret = strings.TrimSpace(secret); secret != "" && strings.EqualFold(scheme, "Bearer") {
			return credential{secret: secret, in: inBearer, field: field, line: i}, true
		}
	}
	return credential{}, false
}

func findQuery(r *http.Request, name string) (credential, bool) {
	part := 0
	for pair := range strings.SplitSeq(r.URL.RawQuery, "&") {
		if secret := queryValue(pair, name); secret != "" {
			return credential{secret: secret, in: inQuery, part: part}, true
		}
		part++
	}
	return credential{}, false
}

// queryValue returns the decoded value of a query pair that has the name, or "".
func queryValue(pair, name string) string {
	k, v, _ := strings.Cut(pair, "=")
	if k, err := url.QueryUnescape(k); err != nil || k != name {
		return ""
	}
	v, err := url.QueryUnescape(v)
	if err != nil {
		return ""
	}
	return v
}

func findCookie(r *http.Request, name string) (credential, bool) {
	const field = "Cookie"
	for i, line := range r.Header[field] {
		part := 0
		for pair := range strings.SplitSeq(line, ";") {
			if k, v := cutCookie(pair); v != "" && k == name {
				return credential{secret: v, in: inCookie, field: field, line: i, part: part}, true
			}
			part++
		}
	}
	return credential{}, false
}

// cutCookie returns the name and the value of a pair in a Cookie line.
func cutCookie(pair string) (name, value string) {
	name, value, _ = strings.Cut(strings.TrimSpace(pair), "=")
	return name, strings.Trim(value, `"`)
}
