// Package exchange bounds what an unfinished exchange of HTTP holds: a body that does not come, and an answer that nobody reads.
package exchange

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"os"
	"time"
)

// How long a client may take to send a body, and to read an answer that [Bytes.Reserve] bounds.
const (
	readWithin  = 20 * time.Second
	writeWithin = time.Minute
)

// checkEvery is how often the bodies that are being read are checked for readWithin.
const checkEvery = time.Second

// Bodies and answers up to these sizes are not counted: their connection takes as much memory.
const (
	smallBody   = 4 << 10
	smallAnswer = 64 << 10 // over HTTP/1; a connection of HTTP/2 or HTTP/3 has many answers
)

// ErrBusy means that unfinished exchanges hold as many bytes as they may.
var ErrBusy = errors.New("unfinished requests and answers hold too many bytes")

// Body is the body of a request in memory. It can be used again after Reset.
type Body struct {
	bytes.Buffer

	// While the body is read.
	w        http.ResponseWriter
	from     io.Reader
	bounds   *Bytes
	owner    string
	most     int64
	counted  int64 // for the owner
	position int   // in Bytes.unread
	checks   int   // by [Bytes.check] so far
}

// ReadBody reads the body of a request: at most max bytes (else *http.MaxBytesError), within 20 s. What has come of an unfinished body counts for
// owner, without its first 4 KiB and at least b.Least. Beyond a bound of b the rest is not read, and the error is [ErrBusy]. Afterwards the request
// has the body [http.NoBody], unless there is an error: then the caller calls [AnswerUnread].
func (b *Bytes) ReadBody(body *Body, w http.ResponseWriter, r *http.Request, owner string, max int64) error {
	if r.ContentLength == 0 {
		return nil
	}
	body.w, body.from, body.bounds, body.owner, body.most, body.counted, body.checks = w, r.Body, b, owner, max, b.Least, 0
	if r.ContentLength < 0 || r.ContentLength > max {
		body.from = http.MaxBytesReader(w, r.Body, max) // closes the connection, in an allocation of its own
	}
	if !b.begin(body) {
		body.w, body.from = nil, nil
		return ErrBusy
	}
	err := body.read()
	if err == nil {
		r.Body = http.NoBody
	}
	return err
}

func (body *Body) read() (err error) {
	defer func() { // also after a panic of a reader in between
		if late := body.bounds.end(body); late && err == nil {
			err = os.ErrDeadlineExceeded // the deadline is set
		}
		body.w, body.from = nil, nil
	}()
	_, err = body.ReadFrom((*counted)(body))
	return err
}

// counted counts the bytes of a body above smallBody as they are read.
type counted Body

// Read implements [io.Reader].
func (c *counted) Read(p []byte) (int, error) {
	n, err := c.from.Read(p)
	if int64(c.Len()+n) > c.most {
		return 0, &http.MaxBytesError{Limit: c.most}
	}
	if more := int64(c.Len()+n) - smallBody - c.counted; more > 0 {
		if !c.bounds.take(c.owner, more, false) {
			return 0, ErrBusy
		}
		c.counted += more
	}
	return n, err
}

// begin counts b.Least for a body, and adds the body to the bodies that check watches. Beyond a bound, begin does nothing and returns false. A deadline
// that is set and cleared for each body would cost two timers of its connection, and over HTTP/2 two messages to the connection's goroutine.
func (b *Bytes) begin(body *Body) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.Least > 0 && !b.takeLocked(body.owner, b.Least, false) {
		return false
	}
	body.position = len(b.unread)
	b.unread = append(b.unread, body)
	if !b.checked {
		b.checked = true
		time.AfterFunc(checkEvery, b.check)
	}
	return true
}

// end removes a body with its bytes, and reports whether its time was over.
func (b *Bytes) end(body *Body) (late bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	last := len(b.unread) - 1
	b.unread[body.position], b.unread[last].position = b.unread[last], body.position
	b.unread[last], b.unread = nil, b.unread[:last]
	b.addLocked(body.owner, -body.counted)
	return body.late()
}

// late reports whether the time of the body is over.
func (body *Body) late() bool { return body.checks >= int(readWithin/checkEvery) }

// check ends the reads of bodies that have not come in time. It runs again while there are unfinished bodies.
func (b *Bytes) check() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, body := range b.unread {
		if body.checks++; body.late() {
			_ = http.NewResponseController(body.w).SetReadDeadline(time.Unix(1, 0)) // ends a read that waits
		}
	}
	if b.checked = len(b.unread) > 0; b.checked {
		time.AfterFunc(checkEvery, b.check)
	}
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
		b.add(owner, -int64(n))
	}, nil
}

// discardWithin is how long net/http reads a body that nobody wants.
const discardWithin = time.Second

// AnswerUnread prepares the answer to a request whose body was not read, or only in part. Over HTTP/1, net/http reads up to 256 KiB of the rest
// before it sends the answer: a client that sends slowly would get none. If the rest does not come within a second, the connection closes after the
// answer (RFC 9112 section 9.6).
func AnswerUnread(w http.ResponseWriter, r *http.Request) {
	if Unread(r) {
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(discardWithin)) // a writer of a test has no deadlines
	}
}

// CloseUnread is [AnswerUnread] for a body that another handler may still read: the connection closes after the answer.
func CloseUnread(w http.ResponseWriter, r *http.Request) {
	if Unread(r) {
		w.Header().Set("Connection", "close")
	}
}

// Unread reports whether a request has a body that net/http would read before the answer.
func Unread(r *http.Request) bool {
	return r.ProtoMajor == 1 && r.ContentLength != 0 && r.Body != nil && r.Body != http.NoBody
}

// Early reports whether a request came as early data of TLS 1.3, also from a client of a proxy in front, which then says so (RFC 8470
// section 5.1). A recorded copy of such a request can be sent again.
func Early(r *http.Request) bool {
	early := r.Header["Early-Data"]
	return r.TLS != nil && !r.TLS.HandshakeComplete || len(early) > 0 && early[0] == "1"
}
