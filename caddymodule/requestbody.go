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

// maxBody bounds a body that a gateway reads before it decides, in bytes. The first [aiusage.MaxHeld] bytes of a body are in memory, the
// others in a file.
const maxBody = 64 << 20

// maxMember bounds the value of a member that the gateway reads, in bytes.
const maxMember = 4 << 10

// bodyError is an error in the body of a request. Its client can mend it, so the log does not have it.
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
	head     []byte
	file     *bodyFile // the bytes behind head; nil if there are none
	size     int64
	edits    []edit
}

// readBody reads the body of a request of a caller, and finds the values of some members. It returns nil for a request without a body. What an
// upstream might read in another way than the gateway is refused: text that is not strictly JSON, members that are there twice, and
// names that differ from a member in case only.
func readBody(r *http.Request, caller string, members ...string) (*requestBody, error) {
	if r.Body == nil || r.Body == http.NoBody {
		return nil, nil
	}
	if encoding := r.Header.Get("Content-Encoding"); encoding != "" && !strings.EqualFold(encoding, "identity") {
		return nil, badBody("body", "The body must not be compressed: the gateway reads it")
	}
	b := &requestBody{picker: aiusage.NewPicker(append(withParents(members), "")...)}
	b.picker.NoteSimilar()
	b.picker.KeepAtMost(maxMember)
	err := b.read(r, caller)
	if err == nil && b.isObject {
		err = b.check(members)
	}
	if err != nil {
		b.close()
		return nil, asBodyError(err)
	}
	if b.size == 0 {
		return nil, nil
	}
	return b, nil
}

// read reads the body into memory and, if it is long, into a file.
func (b *requestBody) read(r *http.Request, caller string) (err error) {
	if b.head, err = io.ReadAll(io.LimitReader(r.Body, aiusage.MaxHeld)); err != nil || len(b.head) == 0 {
		return err
	}
	b.size = int64(len(b.head))
	b.isObject = bytes.HasPrefix(bytes.TrimLeft(b.head, " \t\r\n"), []byte("{"))
	if kind, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type")); !b.isObject && kind != "multipart/form-data" {
		return badBody("body", "The body must be a JSON object, or multipart/form-data: the gateway charges by its members")
	}
	if b.isObject {
		b.picker.Write(b.head)
	}
	if len(b.head) < aiusage.MaxHeld {
		return nil
	}
	if b.file, err = newBodyFile(caller); err != nil {
		return err
	}
	n, err := io.Copy(b, io.LimitReader(r.Body, maxBody-b.size+1))
	if b.size += n; err == nil && b.size > maxBody {
		return errBodyTooLarge
	}
	return err
}

// Write adds bytes to the file of the body, and reads their members.
func (b *requestBody) Write(p []byte) (int, error) {
	if b.isObject {
		b.picker.Write(p)
	}
	return b.file.Write(p)
}

// asBodyError returns an error of reading a body for the client.
func asBodyError(err error) error {
	var known *core.Error
	switch _, tooLong := errors.AsType[*http.MaxBytesError](err); {
	case errors.As(err, &known), errors.Is(err, errBodyFile), errors.Is(err, core.ErrUnavailable):
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

// check refuses a body of which the gateway cannot be sure how an upstream reads it.
func (b *requestBody) check(members []string) error {
	if err := b.picker.Close(); err != nil {
		return badBody("body", "The body %v", err)
	}
	for _, name := range withParents(members) {
		switch v := b.picker.Get(name); {
		case v.Count > 1:
			return badBody(name, "The member %s must be there once", name)
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

// close removes the file of a body. A nil body has none.
func (b *requestBody) close() {
	if b != nil && b.file != nil {
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
	empty := len(object.Raw) > 0 && len(bytes.TrimSpace(object.Raw[1:len(object.Raw)-1])) == 0
	if !empty || slices.ContainsFunc(b.edits, func(e edit) bool { return e.from == end }) {
		member = "," + member
	}
	b.edits = append(b.edits, edit{end, end, member})
}

// apply makes the request send the body with its edits, from the beginning.
func (b *requestBody) apply(r *http.Request) {
	slices.SortStableFunc(b.edits, func(x, y edit) int { return cmp.Compare(x.from, y.from) })
	var parts []io.Reader
	at, size := int64(0), b.size
	for _, e := range b.edits {
		parts = append(parts, b.part(at, e.from), strings.NewReader(e.text))
		at, size = e.to, size+int64(len(e.text))-(e.to-e.from)
	}
	r.Body = io.NopCloser(io.MultiReader(append(parts, b.part(at, b.size))...))
	r.ContentLength, r.TransferEncoding = size, nil
	r.Header.Set("Content-Length", strconv.FormatInt(size, 10))
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
