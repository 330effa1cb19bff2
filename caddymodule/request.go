package caddymodule

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"golang.org/x/net/http/httpguts"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/service"
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

// field returns the canonical name of the header field that holds the source, "" for the query.
func (s KeySource) field() string {
	switch s.In {
	case inBearer:
		return "Authorization"
	case inCookie:
		return "Cookie"
	case inQuery:
		return ""
	}
	return http.CanonicalHeaderKey(s.Name)
}

// check returns an error for an invalid source.
func (s KeySource) check() error {
	switch s.In {
	case inBearer:
		if s.Name != "" {
			return fmt.Errorf("key source bearer takes no name, got %q", s.Name)
		}
	case inHeader, inCookie:
		if s.In == inHeader && strings.EqualFold(s.Name, "Host") {
			return errors.New("key source header: Host cannot carry a key")
		}
		return checkName("key source "+s.In, s.Name, "X-API-Key")
	case inQuery:
		if s.Name == "" {
			return fmt.Errorf("key source query: the name of the parameter is missing")
		}
	default:
		return fmt.Errorf("key source %q: want header, bearer, query or cookie", s.In)
	}
	return nil
}

// checkName returns an error for an invalid name of a header field or cookie.
func checkName(source, name, example string) error {
	if name == "" {
		return fmt.Errorf("%s: the name is missing, such as %s", source, example)
	}
	if !httpguts.ValidHeaderFieldName(name) {
		return fmt.Errorf("%s: %q is not a valid name", source, name)
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
func (s KeySource) find(r *http.Request) (secret string) {
	if s.In == inQuery {
		return findPair(r.URL.RawQuery, "&", cutParam, s.Name)
	}
	for _, line := range r.Header[s.field()] { // no allocation for a canonical name
		switch s.In {
		case inHeader:
			secret = strings.TrimSpace(line)
		case inBearer:
			secret = bearerToken(strings.TrimSpace(line))
		case inCookie:
			secret = findPair(line, ";", cutCookie, s.Name)
		}
		if secret != "" {
			return secret
		}
	}
	return ""
}

// findPair returns the first value of a name in a list of pairs, "" for none. cut returns the name and the value of a pair.
func findPair(list, sep string, cut func(pair string) (name, value string), wanted string) string {
	for pair := range strings.SplitSeq(list, sep) {
		if name, value := cut(pair); value != "" && name == wanted {
			return value
		}
	}
	return ""
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

// bearerToken returns the token of the value of a header field, "" for another scheme.
func bearerToken(value string) string {
	scheme, token, _ := strings.Cut(value, " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return ""
	}
	return strings.TrimSpace(token)
}

// cutParam returns the decoded name and value of a pair in a query, "" for one that cannot be
// decoded.
func cutParam(pair string) (name, value string) {
	name, value, _ = strings.Cut(pair, "=")
	name, _ = url.QueryUnescape(name)
	value, _ = url.QueryUnescape(value)
	return name, value
}

// cutCookie returns the name and the value of a pair in a Cookie line.
func cutCookie(pair string) (name, value string) {
	name, value, _ = strings.Cut(strings.TrimSpace(pair), "=")
	return name, strings.Trim(value, `"`)
}

// RequestIDSource is the place in a request that holds its id.
type RequestIDSource struct {
	// The kind of place: `header`, the whole value of a header field.
	In string `json:"in"`

	// The name of the header field.
	Name string `json:"name"`
}

// check returns an error for an invalid source.
func (s *RequestIDSource) check() error {
	switch {
	case s.In != inHeader:
		return fmt.Errorf("request_id %q: want header", s.In)
	case strings.EqualFold(s.Name, "Host"):
		return errors.New("request_id header: Host cannot carry an id")
	}
	return checkName("request_id header", s.Name, "Idempotency-Key")
}

// checkBeside returns an error if a key source uses the same header field: the key would be the id
// of all its requests.
func (s *RequestIDSource) checkBeside(keys []KeySource) error {
	field := http.CanonicalHeaderKey(s.Name)
	if slices.ContainsFunc(keys, func(k KeySource) bool { return k.field() == field }) {
		return fmt.Errorf("request_id header: %s carries the key", s.Name)
	}
	return nil
}

// errManyIDs refuses a request with several ids: handlers differ on which one counts.
var errManyIDs = &core.Error{Code: core.CodeInvalidRequest, Message: "Invalid request",
	Field: "request_id", Detail: "Must not be given twice"}

// find returns the id of a request, "" for none. The error is a [core.Error] with the code
// INVALID_REQUEST.
func (s *RequestIDSource) find(r *http.Request) (id string, err error) {
	if s == nil {
		return "", nil
	}
	for _, v := range r.Header.Values(s.Name) {
		v = strings.Trim(v, " \t") // HTTP/2 keeps the surrounding space
		if v != "" && id != "" {
			return "", errManyIDs
		}
		id += v
	}
	if id == "" {
		return "", nil
	}
	return service.ParseRequestID(id)
}
