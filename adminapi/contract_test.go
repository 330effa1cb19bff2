package adminapi_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
)

// contract is openapi.yaml, held against exchanges.
type contract struct{ doc *openapi3.T }

// loadContract reads and checks openapi.yaml once.
var loadContract = sync.OnceValues(func() (*contract, error) {
	doc, err := openapi3.NewLoader().LoadFromFile("openapi.yaml")
	if err != nil {
		return nil, err
	}
	if err := doc.Validate(context.Background(), openapi3.EnableMultiError()); err != nil {
		return nil, err
	}
	openapi3filter.RegisterBodyDecoder("application/x-ndjson", openapi3filter.FileBodyDecoder) // a text: kin-openapi does not know the type
	return &contract{doc}, nil
})

func theContract(t testing.TB) *contract {
	t.Helper()
	c, err := loadContract()
	if err != nil {
		t.Fatalf("openapi.yaml: %v", err)
	}
	return c
}

// exchange is a request and its answer, both read to the end.
type exchange struct {
	request *http.Request
	sent    []byte
	status  int
	header  http.Header
	body    []byte
}

func (e *exchange) String() string {
	return fmt.Sprintf("%s %.200s %.500s -> %d %.500s", e.request.Method, e.request.URL.RequestURI(), e.sent, e.status, e.body)
}

// path returns the path of the document that the request is for, with its
// parameters, or nil.
func (c *contract) path(u *url.URL) (template string, item *openapi3.PathItem, params map[string]string) {
	got := strings.Split(u.EscapedPath(), "/")
	for template, item := range c.doc.Paths.Map() {
		if params, ok := matchSegments(strings.Split(template, "/"), got); ok {
			return template, item, params
		}
	}
	return "", nil, nil
}

func matchSegments(template, got []string) (map[string]string, bool) {
	if len(template) != len(got) {
		return nil, false
	}
	params := map[string]string{}
	for i, want := range template {
		segment, err := url.PathUnescape(got[i])
		name, isParam := strings.CutPrefix(want, "{")
		switch {
		case err != nil || got[i] == "." || got[i] == "..":
			return nil, false
		case isParam && segment != "":
			params[strings.TrimSuffix(name, "}")] = segment
		case segment != want:
			return nil, false
		}
	}
	return params, true
}

// route returns what the document says about the request. A path that it does not
// have answers by the response NotFound, a method that a path does not have like the
// other methods of the path.
func (c *contract) route(r *http.Request) (*routers.Route, map[string]string) {
	template, item, params := c.path(r.URL)
	if item == nil {
		return c.nowhere(), nil
	}
	method := r.Method
	if method == http.MethodHead {
		method = http.MethodGet
	}
	op := item.GetOperation(method)
	if op == nil {
		for _, op = range item.Operations() {
			break
		}
	}
	return &routers.Route{Spec: c.doc, Path: template, PathItem: item, Method: method, Operation: op}, params
}

func (c *contract) nowhere() *routers.Route {
	op := &openapi3.Operation{Responses: openapi3.NewResponses(
		openapi3.WithStatus(http.StatusNotFound, c.doc.Components.Responses["NotFound"]),
		openapi3.WithStatus(http.StatusBadRequest, c.doc.Components.Responses["Rejected"]),
	)}
	return &routers.Route{Spec: c.doc, PathItem: &openapi3.PathItem{}, Operation: op}
}

// input makes a copy of the exchange's request that may be consumed.
func (c *contract) input(e *exchange) *openapi3filter.RequestValidationInput {
	r := e.request.Clone(context.Background())
	r.Body = io.NopCloser(bytes.NewReader(e.sent))
	route, params := c.route(r)
	if r.Method == http.MethodHead {
		r.Method = http.MethodGet // kin-openapi looks at nothing of a HEAD
	}
	return &openapi3filter.RequestValidationInput{
		Request: r, PathParams: params, Route: route, QueryParams: r.URL.Query(),
		Options: &openapi3filter.Options{
			AuthenticationFunc:    openapi3filter.NoopAuthenticationFunc,
			IncludeResponseStatus: true,
			SkipSettingDefaults:   true,
			ExcludeResponseBody:   e.request.Method == http.MethodHead,
		},
	}
}

// checkRequest holds a request against the document.
func (c *contract) checkRequest(e *exchange) error {
	if _, item, _ := c.path(e.request.URL); item == nil || item.GetOperation(e.request.Method) == nil {
		return fmt.Errorf("no operation for %s %s", e.request.Method, e.request.URL.Path)
	}
	return openapi3filter.ValidateRequest(context.Background(), c.input(e))
}

// checkAnswer holds an answer against the document.
func (c *contract) checkAnswer(e *exchange) error {
	in := c.input(e)
	if op := in.Route.PathItem.GetOperation(in.Request.Method); op == nil && in.Route.Path != "" && e.status != http.StatusMethodNotAllowed {
		return fmt.Errorf("a method without an operation: want 405, got %d", e.status)
	}
	out := &openapi3filter.ResponseValidationInput{
		RequestValidationInput: in, Status: e.status, Header: e.header, Options: in.Options,
	}
	return openapi3filter.ValidateResponse(context.Background(), out.SetBodyBytes(e.body))
}
