package adminapi

import (
	"bytes"
	"errors"
	"mime"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/document"
	"github.com/limitkeeper/limitkeeper/internal/exchange"
)

// The limits of a request body.
const (
	maxBody  = 64 << 10 // bytes, checked before it is decoded
	maxDepth = 32       // nesting of objects and arrays
)

// members are the members of a body. The first fault is the error.
type members struct {
	*document.Object
	err error
}

// decode parses the body and calls read, which takes the members it knows. Any other member is an
// error. decode returns the first error of the body or of a member.
func decode[T any](c *call, read func(*members) T) (v T, err error) {
	buf := bodyPool.Get().(*bytes.Buffer)
	defer putBuffer(buf)
	body, err := c.body(buf)
	if err != nil {
		return v, err
	}
	m := &members{}
	root, err := document.ParseJSON(body, maxDepth)
	if fault, ok := errors.AsType[*document.SyntaxError](err); ok {
		for member := range fault.At.Tokens() {
			if root.Kind == '{' {
				return v, invalidRequest(fieldName(member), fault.Text)
			}
		}
		return v, invalidRequest("body", "Body m"+fault.Text[1:]) // each text begins with Must
	}
	if root.Kind != '{' {
		return v, invalidRequest("body", "Body must be a JSON object")
	}
	m.Object = document.NewObject(&root, "", func(_ int, path, text string) {
		if m.err == nil {
			m.err = c.faultFunc()(fieldName(topMember(&root, path)), text)
		}
	})
	v = read(m)
	m.End(nil)
	return v, m.err
}

// topMember returns the member of an object that a path leads to or through.
func topMember(root *document.Value, path string) string {
	for i := range root.Members {
		name := root.Members[i].Name
		if rest, ok := strings.CutPrefix(path, name); ok && (rest == "" || strings.ContainsRune(".[", rune(rest[0]))) {
			return name
		}
	}
	return path
}

// bodyPool holds buffers for request bodies.
var bodyPool = sync.Pool{New: func() any { return new(bytes.Buffer) }}

// putBuffer returns a buffer to the pool, unless it is larger than 4 KiB.
func putBuffer(buf *bytes.Buffer) {
	if buf.Cap() <= 4096 {
		buf.Reset()
		bodyPool.Put(buf)
	}
}

// body reads the body into buf and returns its bytes. An empty body is returned as "{}".
func (c *call) body(buf *bytes.Buffer) ([]byte, error) {
	err := c.config.bodies.ReadBody(buf, c.w, c.r, c.account, maxBody)
	if errors.Is(err, exchange.ErrBusy) {
		return nil, core.ErrTooManyRequests
	}
	if _, tooLong := errors.AsType[*http.MaxBytesError](err); tooLong {
		return nil, invalidRequest("body", "Body must be at most 64 KiB")
	}
	if err != nil {
		return nil, invalidRequest("body", "Body cannot be read")
	}
	if len(bytes.TrimSpace(buf.Bytes())) == 0 {
		return []byte("{}"), nil
	}
	return buf.Bytes(), checkContentType(c.r.Header.Get("Content-Type"))
}

// checkContentType returns an error unless the type is JSON in UTF-8. A missing type is accepted.
func checkContentType(value string) error {
	if value == "" || value == "application/json" { // fast path: nearly all clients
		return nil
	}
	mediaType, params, err := mime.ParseMediaType(value)
	charset := params["charset"]
	if err != nil || mediaType != "application/json" ||
		charset != "" && !bytes.EqualFold([]byte(charset), []byte("utf-8")) {
		return invalidRequest("Content-Type", "Content-Type must be application/json in UTF-8")
	}
	return nil
}

// fieldName returns the path of a member, or the name of a parameter, for an error: body for the whole body, shortened, and without
// secrets.
func fieldName(path string) string {
	if path == "" {
		return "body"
	}
	return document.Shown(path)
}

// checkPlanID makes a plan id without the form of one the error of a plan that does not exist.
func (m *members) checkPlanID(id core.Optional[string]) {
	if id.Value != nil && !isID(*id.Value) && m.err == nil {
		m.err = core.ErrPlanNotFound
	}
}

const wantCosts = "Must be an object with whole numbers by meter, such as {\"tokens\": 250}"

// costs returns the costs by meter, sorted by name, and the cost of the meter requests, nil without one.
func (m *members) costs(name string) (costs []core.MeterCost, requests *int64) {
	of := m.Take(name)
	if of == nil {
		return nil, nil
	}
	if of.Kind != '{' {
		m.Wrong(name, wantCosts)
	}
	of.Open()
	if len(of.Members) > core.MaxCosts {
		m.Wrong(name, "Must name at most "+strconv.Itoa(core.MaxCosts)+" meters")
		return nil, nil
	}
	for i := range of.Members {
		meter := &of.Members[i]
		n, ok := document.Whole(&meter.Value)
		switch {
		case !ok:
			m.Wrong(name, wantCosts)
		case meter.Name == core.MeterRequests:
			requests = &n
		default:
			costs = append(costs, core.MeterCost{Meter: meter.Name, Cost: n})
		}
	}
	slices.SortFunc(costs, func(a, b core.MeterCost) int { return strings.Compare(a.Meter, b.Meter) })
	return costs, requests
}
