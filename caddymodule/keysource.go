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

// KeySource is a place in a request that may hold the caller's key.
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

// defaultKeySources are the key sources of a gateway without any.
func defaultKeySources() []KeySource {
	return []KeySource{{In: inHeader, Name: "X-API-Key"}, {In: inBearer}}
}

// check returns an error for an invalid source.
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

// normal returns the canonical form: two sources for the same place are then equal.
func (s KeySource) normal() KeySource {
	if s.In == inHeader {
		s.Name = http.CanonicalHeaderKey(s.Name)
	}
	return s
}

// find returns the first value at this place in the request, "" for none.
func (s KeySource) find(r *http.Request) string {
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

// findKey returns the value of the first source with a value, "" for none.
func findKey(r *http.Request, sources []KeySource) string {
	for _, s := range sources {
		if secret := s.find(r); secret != "" {
			return secret
		}
	}
	return ""
}

func findHeader(r *http.Request, name string) string {
	for _, line := range r.Header[http.CanonicalHeaderKey(name)] { // no allocation for a canonical name
		if secret := strings.TrimSpace(line); secret != "" {
			return secret
		}
	}
	return ""
}

func findBearer(r *http.Request) string {
	for _, line := range r.Header["Authorization"] {
		if secret := bearerToken(strings.TrimSpace(line)); secret != "" {
			return secret
		}
	}
	return ""
}

// bearerToken returns the token of the value of a header field, "" for another scheme.
func bearerToken(value string) string {
	scheme, token, _ := strings.Cut(value, " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return ""
	}
	return strings.TrimSpace(token)
}

func findQuery(r *http.Request, name string) string {
	for pair := range strings.SplitSeq(r.URL.RawQuery, "&") {
		if param, secret := cutParam(pair); secret != "" && param == name {
			return secret
		}
	}
	return ""
}

// cutParam returns the decoded name and value of a pair in a query, "" for one that cannot be
// decoded.
func cutParam(pair string) (name, value string) {
	name, value, _ = strings.Cut(pair, "=")
	name, _ = url.QueryUnescape(name)
	value, _ = url.QueryUnescape(value)
	return name, value
}

func findCookie(r *http.Request, name string) string {
	for _, line := range r.Header["Cookie"] {
		for pair := range strings.SplitSeq(line, ";") {
			if cookie, secret := cutCookie(pair); secret != "" && cookie == name {
				return secret
			}
		}
	}
	return ""
}

// cutCookie returns the name and the value of a pair in a Cookie line.
func cutCookie(pair string) (name, value string) {
	name, value, _ = strings.Cut(strings.TrimSpace(pair), "=")
	return name, strings.Trim(value, `"`)
}
