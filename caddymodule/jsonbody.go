package caddymodule

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net/http"
	"slices"
	"strconv"

	"github.com/limitkeeper/limitkeeper/internal/aiusage"
)

// jsonBody is the JSON body of a request, of which the gateway reads at most [aiusage.MaxHeld] bytes before it decides. It can set members. A
// member behind these bytes is set by one more member with its name at the end of the object: readers of JSON take the last one.
type jsonBody struct {
	picker *aiusage.Picker
	begin  []byte // of the body
	whole  bool   // begin is the whole body
	rest   io.ReadCloser
}

// peekBody reads the beginning of the body of a request, and finds the values of some members. It returns nil unless the body is JSON that
// is not compressed. The body stays as it is.
func peekBody(r *http.Request, members ...string) (*jsonBody, error) {
	kind, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if r.Body == nil || r.Body == http.NoBody || kind != "application/json" || r.Header.Get("Content-Encoding") != "" {
		return nil, nil
	}
	b := &jsonBody{picker: aiusage.NewPicker(members...), rest: r.Body}
	begin, err := io.ReadAll(io.LimitReader(r.Body, aiusage.MaxHeld))
	if err != nil {
		return nil, err
	}
	b.begin = begin
	b.picker.Write(begin)
	b.whole = len(begin) < aiusage.MaxHeld
	r.Body = b.relay(begin)
	return b, nil
}

// relay returns a body that begins with some bytes.
func (b *jsonBody) relay(begin []byte) io.ReadCloser {
	return struct {
		io.Reader
		io.Closer
	}{io.MultiReader(bytes.NewReader(begin), b.rest), b.rest}
}

// wholeNumber returns the value of a member. given is false if the beginning of the body does not have it.
func (b *jsonBody) wholeNumber(member string) (n int64, given bool, err error) {
	if b == nil || !b.picker.Get(member).Seen || string(b.picker.Get(member).Raw) == "null" {
		return 0, false, nil
	}
	n, err = strconv.ParseInt(string(b.picker.Get(member).Raw), 10, 64)
	if err != nil || n < 0 {
		return 0, true, errors.New("must be a whole number")
	}
	return n, true, nil
}

// is reports whether a member is true.
func (b *jsonBody) is(member string) bool { return string(b.picker.Get(member).Raw) == "true" }

// member is a member to set, with its value as JSON.
type member struct{ name, value string }

// edit sets members of the body: the members now, and the members that atEnd returns once the whole body was read.
func (b *jsonBody) edit(r *http.Request, now []member, atEnd func() []member) {
	if _, ended := b.picker.Ended(); b.whole || ended {
		body := b.set(append(now, atEnd()...), true)
		r.Body = b.relay(body)
		if r.ContentLength >= 0 {
			r.ContentLength += int64(len(body) - len(b.begin))
			r.Header.Set("Content-Length", strconv.FormatInt(r.ContentLength, 10))
		}
		return
	}
	var late []member
	for _, m := range now {
		if !b.picker.Get(m.name).Seen {
			late = append(late, m)
		}
	}
	r.ContentLength = -1
	r.Header.Del("Content-Length")
	r.Body = &lateMembers{body: b, begin: b.set(now, false), members: func() []member { return append(late, atEnd()...) }}
}

// set returns the beginning of the body with other values of its members. With the end of the object, the members that are missing are there, too.
func (b *jsonBody) set(members []member, ended bool) []byte {
	text, missing := slices.Clone(b.begin), []byte(nil)
	at, _ := b.picker.Ended()
	slices.SortFunc(members, func(x, y member) int { return int(b.picker.Get(y.name).From - b.picker.Get(x.name).From) }) // from the end on
	for _, m := range members {
		v := b.picker.Get(m.name)
		if !v.Seen {
			missing = append(missing, m.text()...)
			continue
		}
		text = slices.Replace(text, int(v.From), int(v.To), []byte(m.value)...)
		at += int64(len(m.value)) - (v.To - v.From)
	}
	if ended && len(missing) > 0 && at > 0 {
		if bytes.HasSuffix(bytes.TrimRight(text[:at], " \t\r\n"), []byte("{")) {
			missing = missing[1:] // the object is empty
		}
		text = slices.Insert(text, int(at), missing...)
	}
	return text
}

// text returns the member, with a comma before it.
func (m member) text() string {
	name, _ := json.Marshal(m.name)
	return "," + string(name) + ":" + m.value
}

// lateMembers is a body that gets more members at the end of its object.
type lateMembers struct {
	body    *jsonBody
	begin   []byte // the bytes to return next
	members func() []member
	read    int64 // bytes of the original body that the picker has seen
	added   bool
	err     error // of the original body, after begin
}

// Read implements [io.Reader].
func (l *lateMembers) Read(p []byte) (n int, err error) {
	if l.read == 0 {
		l.read = int64(len(l.body.begin))
	}
	if len(l.begin) == 0 {
		if l.err != nil {
			return 0, l.err
		}
		room := make([]byte, min(len(p), 32<<10))
		n, l.err = l.body.rest.Read(room)
		piece := room[:n]
		l.body.picker.Write(piece)
		if at, ended := l.body.picker.Ended(); ended && !l.added {
			l.added = true
			for _, m := range l.members() {
				piece = slices.Insert(piece, int(at-l.read), []byte(m.text())...)
				at += int64(len(m.text()))
			}
		}
		l.read += int64(n)
		l.begin = piece
	}
	n = copy(p, l.begin)
	if l.begin = l.begin[n:]; len(l.begin) == 0 {
		return n, l.err
	}
	return n, nil
}

// Close implements [io.Closer].
func (l *lateMembers) Close() error { return l.body.rest.Close() }
