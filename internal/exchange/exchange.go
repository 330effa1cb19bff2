// Package exchange bounds what an unfinished exchange of HTTP holds: a body that does not come, and an answer that nobody reads.
package exchange

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"time"
)

// How long a client may take to send a body, and to read an answer that [Bytes.Reserve] bounds.
const (
	readWithin  = 20 * time.Second
	writeWithin = time.Minute
)

// Bodies and answers up to these sizes are not counted: their connection takes as much memory.
const (
	smallBody   = 4 << 10
	smallAnswer = 64 << 10 // over HTTP/1; a connection of HTTP/2 or HTTP/3 has many answers
)

// ErrBusy means that unfinished exchanges hold as many bytes as they may.
var ErrBusy = errors.New("unfinished requests and answers hold too many bytes")

// ReadBody appends the body of a request to buf: at most max bytes (else *http.MaxBytesError), within 20 s. What has come of an unfinished body
// counts for owner, without its first 4 KiB and at least b.Least. Beyond a bound of b the rest is not read, and the error is [ErrBusy]. Afterwards the
// request has the body [http.NoBody], unless there is an error.
func (b *Bytes) ReadBody(buf *bytes.Buffer, w http.ResponseWriter, r *http.Request, owner string, max int64) error {
	if r.ContentLength == 0 {
		return nil
	}
	if b.Least > 0 && !b.take(owner, b.Least, false) {
		return ErrBusy
	}
	control := http.NewResponseController(w)
	_ = control.SetReadDeadline(time.Now().Add(readWithin)) // a writer of a test has no deadlines
	body := countedReader{r: http.MaxBytesReader(w, r.Body, max), bytes: b, owner: owner, counted: b.Least}
	_, err := buf.ReadFrom(&body)
	b.give(owner, body.counted)
	if err == nil {
		_ = control.SetReadDeadline(time.Time{}) // the server watches the connection while the request is answered
		r.Body = http.NoBody
	}
	return err
}

// countedReader reads a body, and counts its bytes above smallBody for an owner.
type countedReader struct {
	r             io.Reader
	bytes         *Bytes
	owner         string
	read, counted int64
}

// Read implements [io.Reader].
func (c *countedReader) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.read += int64(n)
	if more := c.read - smallBody - c.counted; more > 0 {
		if !c.bytes.take(c.owner, more, false) {
			return 0, ErrBusy
		}
		c.counted += more
	}
	return n, err
}

// Reserve counts the n bytes of an answer for owner until release, and gives the client a minute to read it. Beyond a bound of b the
// error is [ErrBusy], unless the owner has no other answer. An answer of at most 64 KiB over HTTP/1 is not bounded. The answer to a request that
// changes something is never refused: the change is made, and the answer may have the only copy of a secret.
func (b *Bytes) Reserve(w http.ResponseWriter, r *http.Request, owner string, n int) (release func(), err error) {
	if r.ProtoMajor == 1 && n <= smallAnswer {
		return func() {}, nil
	}
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		b.add(owner, int64(n))
	} else if !b.take(owner, int64(n), true) {
		return nil, ErrBusy
	}
	control := http.NewResponseController(w)
	_ = control.SetWriteDeadline(time.Now().Add(writeWithin))
	return func() {
		// The deadline of HTTP/1 is that of the connection, which has further answers. A stream keeps its own: net/http sends the last bytes
		// after the handler.
		if r.ProtoMajor == 1 {
			_ = control.SetWriteDeadline(time.Time{})
		}
		b.give(owner, int64(n))
	}, nil
}

// maxDrained and drainWithin bound what AnswerUnread reads.
const (
	maxDrained  = 64 << 10
	drainWithin = 10 * time.Millisecond
)

// AnswerUnread prepares the answer to a request whose body was not read, or only in part. Over HTTP/1, net/http reads the rest before it sends
// the answer: a client that waits for "100 Continue", or sends slowly, would get none. A small body that is there is read; else the
// connection closes after the answer (RFC 9112 section 9.6).
func AnswerUnread(w http.ResponseWriter, r *http.Request) {
	if Unread(r) && !drained(w, r) {
		CloseUnread(w, r)
	}
}

// CloseUnread is [AnswerUnread] for a body that another handler may still read.
func CloseUnread(w http.ResponseWriter, r *http.Request) {
	if Unread(r) {
		w.Header().Set("Connection", "close")
	}
}

// Unread reports whether a request has a body that net/http would read before the answer.
func Unread(r *http.Request) bool {
	return r.ProtoMajor == 1 && r.ContentLength != 0 && r.Body != nil && r.Body != http.NoBody
}

// drained reads a small body that has arrived, and reports whether it was all.
func drained(w http.ResponseWriter, r *http.Request) bool {
	if r.ContentLength < 0 || r.ContentLength > maxDrained || r.Header.Get("Expect") != "" {
		return false
	}
	control := http.NewResponseController(w)
	if control.SetReadDeadline(time.Now().Add(drainWithin)) != nil {
		return false
	}
	if _, err := io.Copy(io.Discard, r.Body); err != nil {
		return false
	}
	return control.SetReadDeadline(time.Time{}) == nil
}

// Early reports whether a request came as early data of TLS 1.3, also from a client of a proxy in front, which then says so (RFC 8470
// section 5.1). A recorded copy of such a request can be sent again.
func Early(r *http.Request) bool {
	return r.TLS != nil && !r.TLS.HandshakeComplete || r.Header.Get("Early-Data") == "1"
}
