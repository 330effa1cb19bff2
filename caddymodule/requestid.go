package caddymodule

import (
	"fmt"
	"net/http"
	"slices"
	"strings"

	"golang.org/x/net/http/httpguts"

	"github.com/limitkeeper/limitkeeper/core"
)

// RequestIDSource says where a request carries its id.
type RequestIDSource struct {
	// The kind of place: `header`, the whole value of a header field.
	In string `json:"in"`

	// The name of the header field.
	Name string `json:"name"`
}

// check returns what is wrong with the source.
func (s *RequestIDSource) check() error {
	switch {
	case s.In != inHeader:
		return fmt.Errorf("request_id %q: want header", s.In)
	case !httpguts.ValidHeaderFieldName(s.Name):
		return fmt.Errorf("request_id header: %q is not a valid name", s.Name)
	case strings.EqualFold(s.Name, "Host"):
		return fmt.Errorf("request_id header: Host cannot carry an id")
	}
	return nil
}

// checkBeside returns an error when a key is looked for in the same header field: then
// the key would be the id of all its requests.
func (s *RequestIDSource) checkBeside(keys []KeySource) error {
	field := http.CanonicalHeaderKey(s.Name)
	shared := slices.ContainsFunc(keys, func(k KeySource) bool {
		switch k.In {
		case inBearer:
			return field == "Authorization"
		case inCookie:
			return field == "Cookie"
		}
		return k.In == inHeader && k.normal().Name == field
	})
	if shared {
		return fmt.Errorf("request_id header: %s carries the key", s.Name)
	}
	return nil
}

// errManyIDs refuses a request with several ids: handlers differ on which one counts.
var errManyIDs = &core.Error{Code: core.CodeInvalidRequest, Message: "Invalid request",
	Field: "request_id", Detail: "Must not be given twice"}

// find returns the id that a request has at this place, "" for none. The error is an
// [core.Error] with the code INVALID_REQUEST.
func (s *RequestIDSource) find(r *http.Request) (id string, err error) {
	if s == nil {
		return "", nil
	}
	for _, v := range r.Header.Values(s.Name) {
		v = strings.Trim(v, " \t") // HTTP/2 leaves it there
		if v != "" && id != "" {
			return "", errManyIDs
		}
		id += v
	}
	if id == "" {
		return "", nil
	}
	return id, core.CheckRequestID(id)
}
