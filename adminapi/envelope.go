package adminapi

import (
	"encoding/json"
	"net/http"
	"strconv"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
)

// single is the envelope of one resource.
type single struct {
	Data any `json:"data"`
}

// answer is the body of a validation and of an error. Only a validation has Success.
type answer struct {
	Success *bool       `json:"success,omitempty"`
	Error   string      `json:"error,omitempty"`
	Code    core.Code   `json:"code,omitempty"`
	Reason  core.Reason `json:"reason,omitempty"`
	Details any         `json:"details,omitempty"`
}

// fieldError is the JSON form of an error in a member or parameter.
type fieldError struct {
	Field   string `json:"field"`
	Message string `json:"message"`
}

func errorAnswer(e *core.Error) answer {
	a := answer{Error: e.Message, Code: e.Code, Reason: e.Reason}
	if e.Field != "" {
		a.Details = fieldError{e.Field, e.Detail}
	}
	return a
}

// write answers with v as JSON. It returns an error, and writes nothing, if v cannot be marshalled, or if answers that the clients of
// the account have not read hold too many bytes.
func (c *call) write(status int, v any) error {
	body, err := json.Marshal(v)
	if err != nil {
		return err
	}
	release, err := c.config.answers.Reserve(c.w, c.r, c.account, len(body))
	if err != nil {
		return core.ErrTooManyRequests
	}
	defer release()
	writeBody(c.w, status, body)
	return nil
}

func writeError(w http.ResponseWriter, status int, a answer) {
	body, _ := json.Marshal(a) // an error answer can be marshalled
	writeBody(w, status, body)
}

// writeBody answers with a JSON text and a newline. It may append the newline in place.
func writeBody(w http.ResponseWriter, status int, body []byte) {
	body = append(body, '\n') // keeps a terminal readable
	var room [48]byte
	var f fields
	b := append(room[:0], "application/json"...)
	f.end("Content-Type", b)
	b = strconv.AppendInt(b, int64(len(body)), 10)
	f.end("Content-Length", b)
	b = append(b, "no-store"...)
	f.end("Cache-Control", b)
	f.set(w.Header(), b)
	w.WriteHeader(status)
	_, _ = w.Write(body) // the client may have disconnected
}

// orNull returns nil, which is null in JSON, for a zero value.
func orNull[T comparable](v T) *T {
	var zero T
	if v == zero {
		return nil
	}
	return &v
}

// object is a JSON object with its members in order.
type object []field

type field struct {
	name  string
	value any
}

// view appends the members of a resource.
func view[R, P any](o object, of *core.Members[R, P], r *R) object {
	for i := range of.List {
		o = append(o, field{of.List[i].Name, of.List[i].Get(r)})
	}
	return o
}

// and appends the times of a resource.
func (o object) and(created, updated time.Time) object {
	return append(o, field{"created_at", created}, field{"updated_at", updated})
}

// MarshalJSON implements [json.Marshaler].
func (o object) MarshalJSON() ([]byte, error) {
	b := []byte{'{'}
	for i, f := range o {
		if i > 0 {
			b = append(b, ',')
		}
		text, err := json.Marshal(f.value)
		if err != nil {
			return nil, err
		}
		b = append(append(appendText(b, f.name), ':'), text...)
	}
	return append(b, '}'), nil
}
