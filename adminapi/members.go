package adminapi

import (
	"bytes"
	"errors"
	"mime"
	"net/http"
	"strconv"
	"strings"
	"sync"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/document"
	"github.com/limitkeeper/limitkeeper/core/service"
	"github.com/limitkeeper/limitkeeper/internal/exchange"
)

// The limits of a request body.
const (
	maxBody  = 64 << 10 // bytes, checked before it is decoded
	maxDepth = 32       // nesting of objects and arrays
)

// members are the members of a body. The first fault is the error.
type members struct {
	document.Object
	call *call
	body exchange.Body
	root document.Value
	err  error

	report document.Report // is wrong, in an allocation for all bodies
}

// membersPool holds the memory of members: each request would allocate 1 kB.
var membersPool = sync.Pool{New: func() any {
	m := new(members)
	m.report = m.wrong
	return m
}}

// release returns the memory to the pool, unless it is larger than usual.
func (m *members) release() {
	if m.body.Cap() > 4096 || cap(m.root.Members) > 16 {
		return
	}
	m.body.Reset()
	m.call, m.err = nil, nil
	membersPool.Put(m)
}

// wrong records a fault of a member, if it is the first. The text of a fault inside a member begins with its path.
func (m *members) wrong(_ int, path, text string) {
	if m.err != nil {
		return
	}
	top := topMember(&m.root, path)
	if path != top {
		text = fieldName(path) + ": " + text
	}
	m.err = m.call.faultFunc()(fieldName(top), text)
}

// decode parses the body and calls read, which takes the members it knows. Any other member is an
// error. decode returns the first error of the body or of a member.
func decode[T any](c *call, read func(*members) T) (v T, err error) {
	m := membersPool.Get().(*members)
	defer m.release()
	m.call = c
	if err := m.parse(); err != nil {
		return v, err
	}
	v = read(m)
	if id := m.Take("plan_id"); m.err == nil && id != nil && id.Kind == '"' && !isID(id.Text) {
		m.err = core.ErrPlanNotFound
	}
	m.End(nil)
	return v, m.err
}

// patch returns a function that takes the members of a resource, and ignores the read-only members of its answers.
func patch[R, P any](of *core.Members[R, P], readOnly ...string) func(*members) P {
	return func(m *members) (p P) {
		m.Ignore(readOnly...)
		document.Read(&m.Object, of, &p)
		return p
	}
}

// parse reads and parses the body of the call.
func (m *members) parse() error {
	text, err := m.read()
	if err != nil {
		return err
	}
	if fault, ok := errors.AsType[*document.SyntaxError](m.root.ParseJSON(text, maxDepth)); ok {
		for member := range fault.At.Tokens() {
			if m.root.Kind == '{' {
				return core.BadRequest(fieldName(member), fault.Text)
			}
		}
		return core.BadRequest("body", "Body m"+fault.Text[1:]) // each text begins with Must
	}
	if m.root.Kind != '{' {
		return core.BadRequest("body", "Body must be a JSON object")
	}
	m.Reset(&m.root, "", m.report)
	return nil
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

// read reads the body. An empty body is returned as "{}".
func (m *members) read() ([]byte, error) {
	c := m.call
	err := c.config.bodies.ReadBody(&m.body, c.w, c.r, c.account, maxBody)
	if errors.Is(err, exchange.ErrBusy) {
		return nil, service.ErrTooManyRequests
	}
	if _, tooLong := errors.AsType[*http.MaxBytesError](err); tooLong {
		return nil, core.BadRequest("body", "Body must be at most 64 KiB")
	}
	if err != nil {
		return nil, core.BadRequest("body", "Body cannot be read")
	}
	if len(bytes.TrimSpace(m.body.Bytes())) == 0 {
		return []byte("{}"), nil
	}
	return m.body.Bytes(), checkContentType(c.r.Header["Content-Type"])
}

// checkContentType returns an error unless the first type is JSON in UTF-8. A missing type is accepted.
func checkContentType(values []string) error {
	if len(values) == 0 || values[0] == "" || values[0] == "application/json" { // fast path: nearly all clients
		return nil
	}
	mediaType, params, err := mime.ParseMediaType(values[0])
	charset := params["charset"]
	if err != nil || mediaType != "application/json" ||
		charset != "" && !strings.EqualFold(charset, "utf-8") {
		return core.BadRequest("Content-Type", "Content-Type must be application/json in UTF-8")
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
	core.SortCosts(costs)
	return costs, requests
}
