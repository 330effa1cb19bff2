package caddymodule

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/secrets"
	"github.com/limitkeeper/limitkeeper/internal/aiusage"
)

// maxBody bounds a body that a gateway reads before it decides, in bytes. The first [aiusage.MaxBuffered] bytes of a body are in memory, the
// others in a file.
const maxBody = 64 << 20

// maxMember bounds the value of a member that the gateway reads, in bytes.
const maxMember = 4 << 10

// bodyError is an error in the body of a request. The client has caused it, so it is not logged.
type bodyError struct{ err *core.Error }

// Error implements error.
func (e bodyError) Error() string { return e.err.Error() }

// Unwrap returns the error for the client.
func (e bodyError) Unwrap() error { return e.err }

// badBody returns an error about a member of the body, or about the body.
func badBody(field, format string, args ...any) error {
	return bodyError{core.BadRequest(field, fmt.Sprintf(format, args...))}
}

var (
	errBodyTooLarge = bodyError{core.BadRequest("body", fmt.Sprintf("The body is too long: the gateway reads it before it decides, and takes at most %d MiB", maxBody>>20))}
	errBodyFile     = errors.New("the temporary file of the body of a request failed")
)

// requestBody is the body of a request that the gateway has read before it decides: a JSON object whose members are known, or the parts of a
// form. It is closed when the request has ended.
type requestBody struct {
	picker   *aiusage.Picker
	isObject bool // otherwise it has no members
	api      textAPI
	head     []byte
	file     *bodyFile // the bytes behind head
	size     int64
	edits    []edit

	lost   []byte    // read behind the file, after an error
	unread io.Reader // the rest of the body, after an error; nil if the whole body was read
}

// readBody reads the body of a request of a caller, and finds the values of some members. It returns nil for a request without a body. What an
// upstream might read in another way than the gateway is refused: text that is not strictly JSON, members that are there twice, and
// names that differ from a member in case only. The body is not nil with an error, so that it can be forwarded all the same.
func readBody(r *http.Request, caller string, members ...string) (*requestBody, error) {
	if r.Body == nil || r.Body == http.NoBody {
		return nil, nil
	}
	if encoding := r.Header.Get("Content-Encoding"); encoding != "" && !strings.EqualFold(encoding, "identity") {
		return nil, badBody("body", "The body must not be compressed: the gateway reads it")
	}
	memory := int64(aiusage.MaxBuffered)
	if r.ContentLength >= 0 {
		memory = min(memory, r.ContentLength)
	}
	file, err := newBodyFile(caller, memory)
	if err != nil {
		return nil, err
	}
	b := &requestBody{picker: aiusage.NewPicker(append(withParents(members), "")...), file: file}
	b.picker.NoteSimilar()
	b.picker.KeepAtMost(maxMember)
	if err = b.read(r); err == nil && b.isObject {
		err = b.check(members)
	}
	if err == nil && b.size == 0 {
		b.close()
		return nil, nil
	}
	return b, asBodyError(err)
}

// read reads the body into memory and, if it is long, into a file.
func (b *requestBody) read(r *http.Request) (err error) {
	b.unread = r.Body
	b.head, err = io.ReadAll(io.LimitReader(r.Body, aiusage.MaxBuffered))
	if b.size = int64(len(b.head)); err != nil || b.size == 0 {
		return err
	}
	b.isObject = bytes.HasPrefix(bytes.TrimLeft(b.head, " \t\r\n"), []byte("{"))
	if kind, params, _ := mime.ParseMediaType(r.Header.Get("Content-Type")); !b.isObject &&
		(kind != "multipart/form-data" || !bytes.HasPrefix(b.head, []byte("--"+params["boundary"]))) {
		return badBody("body", "The body must be a JSON object, or multipart/form-data: the gateway charges by its members")
	}
	if b.isObject {
		b.picker.Write(b.head)
	}
	if len(b.head) == aiusage.MaxBuffered {
		n, err := io.Copy(b, io.LimitReader(r.Body, maxBody-b.size+1))
		if b.size += n; err != nil {
			return err
		}
		if b.size > maxBody {
			return errBodyTooLarge
		}
	}
	b.unread = nil
	return nil
}

// Write adds bytes to the file of the body, and reads their members.
func (b *requestBody) Write(p []byte) (int, error) {
	if b.isObject {
		b.picker.Write(p)
	}
	n, err := b.file.Write(p)
	if err != nil {
		b.lost = bytes.Clone(p[n:])
	}
	return n, err
}

// asBodyError returns an error of reading a body for the client.
func asBodyError(err error) error {
	var known *core.Error
	switch _, tooLong := errors.AsType[*http.MaxBytesError](err); {
	case err == nil, errors.As(err, &known), errors.Is(err, errBodyFile), errors.Is(err, core.ErrUnavailable):
		return err
	case tooLong:
		return errBodyTooLarge
	}
	return badBody("body", "The body cannot be read")
}

// withParents returns paths, and the paths of the objects around them.
func withParents(paths []string) (all []string) {
	for _, path := range paths {
		for i, c := range path {
			if c == '.' {
				all = append(all, path[:i])
			}
		}
		all = append(all, path)
	}
	return all
}

// check refuses a body that an upstream may parse in another way: text that is not JSON, a member that is there twice, a name that is almost
// that of a member.
func (b *requestBody) check(members []string) error {
	if err := b.picker.Close(); err != nil {
		return badBody("body", "The body %v", err)
	}
	for _, name := range withParents(members) {
		switch v := b.picker.Get(name); {
		case v.Count > 1 && !strings.HasSuffix(name, itemsOf):
			return badBody(name, "The member %s is there twice: send it once", name)
		case v.Similar != "":
			return badBody(name, "The member %q is unknown: did you mean %s?", secrets.Sanitize(v.Similar, 64), name)
		}
	}
	return nil
}

// get returns the value of a member.
func (b *requestBody) get(name string) aiusage.Picked {
	if b == nil || !b.isObject {
		return aiusage.Picked{}
	}
	return b.picker.Get(name)
}

// text returns the string of a member, "" if there is none.
func (b *requestBody) text(name string) string {
	if b == nil || !b.isObject {
		return ""
	}
	return b.picker.Text(name)
}

// wholeNumber returns the number of a member. given is false if the member is missing or null.
func (b *requestBody) wholeNumber(name string, most int64) (n int64, given bool, err error) {
	v := b.get(name)
	if !v.Seen() || string(v.Raw) == "null" {
		return 0, false, nil
	}
	n, err = strconv.ParseInt(string(v.Raw), 10, 64)
	if err != nil || n < 0 || n > most {
		return 0, true, badBody(name, "The member %s must be a whole number from 0 to %d", name, most)
	}
	return n, true, nil
}

// isTrue reports whether a member is true. Any other value than true, false and null is an error.
func (b *requestBody) isTrue(name string) (bool, error) {
	v := b.get(name)
	switch raw := string(v.Raw); {
	case raw == "true":
		return true, nil
	case !v.Seen(), raw == "false", raw == "null":
		return false, nil
	}
	return false, badBody(name, "The member %s must be true or false", name)
}

// itemsOf is the end of the path of the items of an array.
const itemsOf = ".[]"

// close frees the space of a body. A nil body has none.
func (b *requestBody) close() {
	if b != nil {
		b.file.close()
	}
}

// edit is a change of a body: the text in place of the bytes from an offset to another.
type edit struct {
	from, to int64
	text     string
}

// set sets a member to a JSON value. A member that is missing comes to the end of its object, and an object that is missing to the end of
// the object around it.
func (b *requestBody) set(name, value string) {
	if v := b.get(name); v.Seen() {
		b.edits = append(b.edits, edit{v.From, v.To, value})
		return
	}
	parent, last := "", name
	if i := strings.LastIndexByte(name, '.'); i >= 0 {
		parent, last = name[:i], name[i+1:]
	}
	quoted, _ := json.Marshal(last)
	member := string(quoted) + ":" + value
	object := b.get(parent)
	if !object.Seen() || len(object.Raw) > 0 && object.Raw[0] != '{' {
		b.set(parent, "{"+member+"}")
		return
	}
	end := object.To - 1
	if !object.Empty || slices.ContainsFunc(b.edits, func(e edit) bool { return e.from == end }) {
		member = "," + member
	}
	b.edits = append(b.edits, edit{end, end, member})
}

// apply makes the request send the body with its edits, from the beginning. When the body is sent, its space is free. A body that was read in part is sent
// as it came.
func (b *requestBody) apply(r *http.Request) {
	slices.SortStableFunc(b.edits, func(x, y edit) int { return cmp.Compare(x.from, y.from) })
	var parts []io.Reader
	at, size := int64(0), b.size
	for _, e := range b.edits {
		parts = append(parts, b.part(at, e.from), strings.NewReader(e.text))
		at, size = e.to, size+int64(len(e.text))-(e.to-e.from)
	}
	parts = append(parts, b.part(at, b.size))
	if b.unread != nil {
		parts = append(parts, bytes.NewReader(b.lost), b.unread)
	} else if r.ContentLength >= 0 {
		r.ContentLength = size
		r.Header.Set("Content-Length", strconv.FormatInt(size, 10))
	}
	r.Body = &sentBody{Reader: io.MultiReader(parts...), body: b, Closer: r.Body}
}

// eof is a reader at its end.
type eof struct{}

func (eof) Read([]byte) (int, error) { return 0, io.EOF }

// sentBody is a body on its way to the upstream.
type sentBody struct {
	io.Reader
	io.Closer
	body *requestBody
}

// Read implements [io.Reader].
func (s *sentBody) Read(p []byte) (int, error) {
	n, err := s.Reader.Read(p)
	if err == io.EOF { // the memory is free, too
		s.body.close()
		s.Reader, s.body.head, s.body.edits = eof{}, nil, nil
	}
	return n, err
}

// part returns the bytes of the body from an offset to another.
func (b *requestBody) part(from, to int64) io.Reader {
	head := int64(len(b.head))
	begin := bytes.NewReader(b.head[min(from, head):min(to, head)])
	if to <= head {
		return begin
	}
	from = max(from, head)
	return io.MultiReader(begin, io.NewSectionReader(b.file, from-head, to-from))
}
