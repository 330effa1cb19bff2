package caddymodule

import (
	"fmt"
	"net/http"
	"slices"
	"strings"

	"golang.org/x/net/http/httpguts"

	"github.com/limitkeeper/limitkeeper/core"
)

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
	case !httpguts.ValidHeaderFieldName(s.Name):
		return fmt.Errorf("request_id header: %q is not a valid name", s.Name)
	case strings.EqualFold(s.Name, "Host"):
		return fmt.Errorf("request_id header: Host cannot carry an id")
	}
	return nil
}

// checkBeside returns an error if a key source uses the same header field: the key would be the id
// of all its requests.
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
	return id, core.CheckRequestID(id)
}
