package adminapi

import (
	"encoding/json"
	"net/http"
	"strconv"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/service"
)

// andError appends the members of an error.
func (o object) andError(e *core.Error) object {
	o = append(o, field{"error", e.Message})
	o = append(o, some("code", e.Code)...)
	o = append(o, some("reason", e.Reason)...)
	if e.Field != "" {
		o = append(o, field{"details", append(object{{"field", e.Field}}, some("message", e.Detail)...)})
	}
	return o
}

// write answers with an object. It returns an error, and writes nothing, if a member cannot be marshalled, or if answers that the clients of
// the account have not read hold too many bytes.
func (c *call) write(status int, o object) error {
	body, err := o.append(nil)
	if err != nil {
		return err
	}
	release, err := c.config.answers.Reserve(c.w, c.r, c.account, len(body))
	if err != nil {
		return service.ErrTooManyRequests
	}
	defer release()
	WriteBody(c.w, status, typeJSON, body)
	return nil
}

// writeData answers with one resource.
func (c *call) writeData(status int, o object) error { return c.write(status, object{{"data", o}}) }

func writeError(w http.ResponseWriter, status int, o object) {
	body, _ := o.append(nil) // an error answer can be marshalled
	WriteBody(w, status, typeJSON, body)
}

const typeJSON = "application/json"

// WriteBody answers with a JSON text of a media type and a newline. It may append the newline in place.
func WriteBody(w http.ResponseWriter, status int, mediaType string, body []byte) {
	var room [48]byte
	var f fields
	f.writeBody(w, status, mediaType, room[:0], body)
}

// writeBody is [WriteBody] with the fields so far, whose values are in text.
func (f *fields) writeBody(w http.ResponseWriter, status int, mediaType string, text, body []byte) {
	body = append(body, '\n') // keeps a terminal readable
	text = append(text, mediaType...)
	f.end("Content-Type", text)
	text = strconv.AppendInt(text, int64(len(body)), 10)
	f.end("Content-Length", text)
	text = append(text, "no-store"...)
	f.end("Cache-Control", text)
	f.set(w.Header(), text)
	w.WriteHeader(status)
	_, _ = w.Write(body) // the client may have disconnected
}

// orNull returns nil, which is null in JSON, for a zero value.
func orNull[T comparable](v T) *T {
	if v == *new(T) {
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

// some returns an object with a member, without any for a zero value.
func some[T comparable](name string, v T) object {
	if v == *new(T) {
		return nil
	}
	return object{{name, v}}
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

// append appends the object as JSON, ten times faster than json.Marshal, which checks and copies what each level of objects returns.
func (o object) append(b []byte) (_ []byte, err error) {
	b = append(b, '{')
	for i, f := range o {
		if i > 0 {
			b = append(b, ',')
		}
		if b, err = appendValue(append(appendText(b, f.name), ':'), f.value); err != nil {
			return nil, err
		}
	}
	return append(b, '}'), nil
}

func appendValue(b []byte, v any) (_ []byte, err error) {
	switch v := v.(type) {
	case object:
		return v.append(b)
	case []object:
		b = append(b, '[')
		for i, o := range v {
			if i > 0 {
				b = append(b, ',')
			}
			if b, err = o.append(b); err != nil {
				return nil, err
			}
		}
		return append(b, ']'), nil
	case string:
		return appendText(b, v), nil
	case int64:
		return strconv.AppendInt(b, v, 10), nil
	}
	text, err := json.Marshal(v)
	return append(b, text...), err
}
