package adminapi

import (
	"bytes"
	"encoding/json"
	"errors"
	"maps"
	"mime"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/internal/exchange"
)

// The limits of a request body. They are checked before the body is decoded.
const (
	maxBody  = 64 << 10 // bytes
	maxDepth = 32       // nesting of objects and arrays
	maxField = 64       // bytes of an unknown member's name in an error
)

// decode parses the body and calls read, which takes the members it knows. Any other member is an
// error. decode returns the first error of the body or of a member.
func decode[T any](c *call, read func(*members) T) (v T, err error) {
	buf := bodyPool.Get().(*bytes.Buffer)
	defer putBuffer(buf)
	body, err := c.body(buf)
	if err != nil {
		return v, err
	}
	return decodeBody(c, body, read)
}

// decodeBody is decode for a body in memory. The result does not refer to body, so the caller can
// reuse the buffer.
func decodeBody[T any](c *call, body []byte, read func(*members) T) (v T, err error) {
	m := &members{fault: c.faultFunc()}
	if m.raw, m.names, err = parseObject(body); err != nil {
		return v, err
	}
	v = read(m)
	m.refuseUnknown()
	return v, m.err
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

// parseObject returns the members of a JSON object, and their names in order. Duplicate names are
// refused at any depth, because parsers differ on which one they use.
func parseObject(body []byte) (raw map[string]json.RawMessage, names []string, err error) {
	if !utf8.Valid(body) {
		return nil, nil, invalidRequest("body", "Body must be valid UTF-8")
	}
	if !json.Valid(body) {
		return nil, nil, invalidRequest("body", "Body must be valid JSON")
	}
	if loneSurrogate(body) {
		return nil, nil, invalidRequest("body", "Body must not escape half a surrogate pair")
	}
	dec := json.NewDecoder(bytes.NewReader(body))
	if t, _ := dec.Token(); t != json.Delim('{') {
		return nil, nil, invalidRequest("body", "Body must be a JSON object")
	}
	raw = map[string]json.RawMessage{}
	for dec.More() {
		name := nextName(dec)
		if _, twice := raw[name]; twice {
			return nil, nil, invalidRequest(fieldName(name), "Must not be given twice")
		}
		var value json.RawMessage
		_ = dec.Decode(&value) // the body is valid
		if value[0] == '{' || value[0] == '[' {
			nested := json.NewDecoder(bytes.NewReader(value))
			nested.UseNumber() // a number may be larger than any Go type
			if fault := checkNested(nested, 1); fault != "" {
				return nil, nil, invalidRequest(fieldName(name), fault)
			}
		}
		raw[name] = value
		names = append(names, name)
	}
	return raw, names, nil
}

// loneSurrogate reports whether a valid JSON text escapes half a surrogate pair. encoding/json would
// replace it by U+FFFD (RFC 8259 section 8.2).
func loneSurrogate(text []byte) bool {
	for i := 0; i < len(text); i++ {
		if text[i] != '\\' {
			continue
		}
		i++ // skip the backslash
		if text[i] != 'u' {
			continue
		}
		r := unescaped(text[i:])
		i += len("u0000") - 1
		if !utf16.IsSurrogate(r) {
			continue
		}
		if i+2 >= len(text) || text[i+1] != '\\' || text[i+2] != 'u' ||
			utf16.DecodeRune(r, unescaped(text[i+2:])) == unicode.ReplacementChar {
			return true
		}
		i += len(`\u0000`)
	}
	return false
}

// unescaped returns the code unit of an escape. text starts with its u.
func unescaped(text []byte) rune {
	n, _ := strconv.ParseUint(string(text[1:5]), 16, 16) // the JSON is valid
	return rune(n)
}

// checkNested reads one value and returns an error text, "" for a valid value.
func checkNested(dec *json.Decoder, depth int) (fault string) {
	open, _ := dec.Token()
	if _, nests := open.(json.Delim); !nests {
		return ""
	}
	if depth == maxDepth {
		return "Must not be nested that deeply"
	}
	names := map[string]bool{}
	for dec.More() {
		if open == json.Delim('{') {
			name := nextName(dec)
			if names[name] {
				return "Must not hold a member twice"
			}
			names[name] = true
		}
		if fault := checkNested(dec, depth+1); fault != "" {
			return fault
		}
	}
	_, _ = dec.Token() // the end of the object or array
	return ""
}

// nextName returns the name of the next member of the current object.
func nextName(dec *json.Decoder) string {
	t, _ := dec.Token()
	name, _ := t.(string)
	return name
}

// fieldName returns the name of an unknown member or parameter for an error: shortened, and without
// secrets.
func fieldName(name string) string {
	if name == "" {
		return "body"
	}
	return core.MaskSecrets(string(bytes.ToValidUTF8([]byte(name)[:min(len(name), maxField)], nil)))
}

// members are the members of a body. Each method takes one member and records the first error.
type members struct {
	names []string                   // of all members, in the order of the body
	raw   map[string]json.RawMessage // the members that were not taken
	fault func(field, detail string) *core.Error
	err   error
}

// take returns the text of a member and marks the member as known.
func (m *members) take(name string) (raw json.RawMessage, ok bool) {
	raw, ok = m.raw[name]
	delete(m.raw, name)
	return raw, ok
}

// ignore marks members as known. Their values have no effect and are not checked.
func (m *members) ignore(names ...string) {
	for _, name := range names {
		delete(m.raw, name)
	}
}

// refuseUnknown refuses the first member that is not known.
func (m *members) refuseUnknown() {
	for _, name := range m.names {
		if _, left := m.raw[name]; left {
			m.wrong(fieldName(name), "Unknown member")
			return
		}
	}
}

func (m *members) wrong(name, detail string) {
	if m.err == nil {
		m.err = m.fault(name, detail)
	}
}

// member returns a member of the type T, nil when it is missing.
func member[T any](m *members, name, want string) *T {
	raw, ok := m.take(name)
	if !ok {
		return nil
	}
	var v *T
	if json.Unmarshal(raw, &v) != nil || v == nil {
		m.wrong(name, want)
		return nil
	}
	return v
}

// optional returns a member of the type T that may be null.
func optional[T any](m *members, name, want string) core.Optional[T] {
	if string(m.raw[name]) == "null" {
		m.ignore(name)
		return core.Null[T]()
	}
	v := member[T](m, name, want)
	return core.Optional[T]{Set: v != nil, Value: v}
}

const (
	wantText  = "Must be a string"
	wantTexts = "Must be an array of strings"
	wantFlag  = "Must be true or false"
	wantWhole = "Must be a whole number"
	wantTime  = "Must be a time as in RFC 3339, such as 2030-01-31T00:00:00Z"
)

func (m *members) text(name string) *string { return member[string](m, name, wantText) }

func (m *members) flag(name string) *bool { return member[bool](m, name, wantFlag) }

func (m *members) optionalText(name string) core.Optional[string] {
	return optional[string](m, name, wantText)
}

// whole returns a whole number in any JSON notation. A number outside int64 becomes the nearest
// int64, which is outside the range of every member.
func (m *members) whole(name string) *int64 {
	raw, ok := m.take(name)
	if !ok {
		return nil
	}
	n, ok := parseWhole(string(raw))
	if !ok {
		m.wrong(name, wantWhole)
		return nil
	}
	return &n
}

// planID returns the member plan_id.
func (m *members) planID() core.Optional[string] {
	o := m.optionalText("plan_id")
	if o.Value != nil && !isID(*o.Value) && m.err == nil {
		m.err = core.ErrPlanNotFound
	}
	return o
}

// texts returns an array of strings, none of them null.
func (m *members) texts(name string) core.Optional[[]string] {
	o := optional[[]*string](m, name, wantTexts)
	if o.Value == nil {
		return core.Optional[[]string]{Set: o.Set}
	}
	out := make([]string, len(*o.Value))
	for i, s := range *o.Value {
		if s == nil {
			m.wrong(name, wantTexts)
			break
		}
		out[i] = *s
	}
	return core.Some(out)
}

const (
	wantLimits = "Must be an array of limits, such as {\"meter\": \"tokens\", \"max\": 1000, \"period\": \"month\"}"
	wantRate   = "Must be a rate, such as {\"requests\": 10, \"per\": \"second\", \"burst\": 20}"
	wantCosts  = "Must be an object with whole numbers by meter, such as {\"tokens\": 250}"
)

// limits returns the limits of a plan. Each has a meter, a max and a period.
func (m *members) limits(name string) core.Optional[[]core.Limit] {
	o := optional[[]json.RawMessage](m, name, wantLimits)
	if o.Value == nil {
		return core.Optional[[]core.Limit]{Set: o.Set}
	}
	out := make([]core.Limit, 0, min(len(*o.Value), core.MaxLimits+1))
	for _, raw := range *o.Value {
		l, err := decodeLimit(raw)
		if err != "" {
			m.wrong(name, err)
		}
		if out = append(out, l); len(out) > core.MaxLimits || err != "" {
			break // core refuses so many
		}
	}
	return core.Some(out)
}

// decodeLimit decodes one limit. The error is a text, "" for none.
func decodeLimit(raw json.RawMessage) (l core.Limit, fault string) {
	var of map[string]json.RawMessage
	if json.Unmarshal(raw, &of) != nil || len(of) != 3 {
		return l, wantLimits
	}
	max, whole := parseWhole(string(of["max"]))
	var meter, period *string
	if json.Unmarshal(of["meter"], &meter) != nil || json.Unmarshal(of["period"], &period) != nil || meter == nil || period == nil || !whole {
		return l, wantLimits
	}
	p, err := core.ParsePeriod(*period)
	if err != nil {
		return l, "The period of a limit must be one of minute, hour, day, week, month, year, lifetime"
	}
	return core.Limit{Meter: *meter, Max: max, Period: p}, ""
}

// rate returns the rate of a plan. Its burst is its requests unless it is given.
func (m *members) rate(name string) core.Optional[core.Rate] {
	o := optional[map[string]json.RawMessage](m, name, wantRate)
	if o.Value == nil {
		return core.Optional[core.Rate]{Set: o.Set}
	}
	of := *o.Value
	requests, whole := parseWhole(string(of["requests"]))
	burst, known := requests, 2
	if raw, ok := of["burst"]; ok {
		n, ok := parseWhole(string(raw))
		burst, whole, known = n, whole && ok, 3
	}
	var per *core.RatePer
	if json.Unmarshal(of["per"], &per) != nil || per == nil || !whole || len(of) != known {
		m.wrong(name, wantRate)
		return core.Optional[core.Rate]{}
	}
	return core.Some(core.Rate{Requests: requests, Per: *per, Burst: burst})
}

// costs returns the costs by meter, sorted by name, and the cost of the meter requests, nil without one.
func (m *members) costs(name string) (costs []core.MeterCost, requests *int64) {
	of := member[map[string]json.RawMessage](m, name, wantCosts)
	if of == nil {
		return nil, nil
	}
	if len(*of) > core.MaxCosts {
		m.wrong(name, "Must name at most "+strconv.Itoa(core.MaxCosts)+" meters")
		return nil, nil
	}
	for _, meter := range slices.Sorted(maps.Keys(*of)) {
		n, ok := parseWhole(string((*of)[meter]))
		switch {
		case !ok:
			m.wrong(name, wantCosts)
		case meter == core.MeterRequests:
			requests = &n
		default:
			costs = append(costs, core.MeterCost{Meter: meter, Cost: n})
		}
	}
	return costs, requests
}

// time returns an instant, truncated to the millisecond as in the store.
func (m *members) time(name string) core.Optional[time.Time] {
	o := optional[string](m, name, wantText)
	if o.Value == nil {
		return core.Optional[time.Time]{Set: o.Set}
	}
	var t time.Time
	if err := t.UnmarshalText([]byte(*o.Value)); err != nil || t.UTC().Year() > 9999 || t.UTC().Year() < 0 {
		m.wrong(name, wantTime)
	}
	return core.Some(t.UTC().Truncate(time.Millisecond))
}

// start returns a start of windows: an instant, or the beginning of a day in UTC.
func (m *members) start(name string) core.Optional[time.Time] {
	o := optional[string](m, name, wantText)
	if o.Value == nil {
		return core.Optional[time.Time]{Set: o.Set}
	}
	t, err := time.Parse(time.RFC3339, *o.Value)
	if err != nil {
		t, err = time.Parse(time.DateOnly, *o.Value)
	}
	if y := t.UTC().Year(); err != nil || y > 9999 || y < 1970 {
		m.wrong(name, "Must be a time as in RFC 3339, or a date, from 1970 on, such as 2030-01-31T00:00:00Z or 2030-01-31")
	}
	return core.Some(t.UTC())
}

// object returns the raw JSON of a member. core validates it.
func (m *members) object(name string) core.Optional[json.RawMessage] {
	raw, ok := m.take(name)
	switch {
	case !ok:
		return core.Optional[json.RawMessage]{}
	case string(raw) == "null":
		return core.Null[json.RawMessage]()
	}
	return core.Some(raw)
}
