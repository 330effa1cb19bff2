package exchange

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// taken returns the bytes that unfinished exchanges hold.
func (b *Bytes) taken() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.total
}

// until waits until the exchanges hold some bytes, or none.
func (b *Bytes) until(t *testing.T, some bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); (b.taken() > 0) != some; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d bytes are held, and that does not change", b.taken())
		}
	}
}

// An answer that nobody reads, and a body that does not come, count until their client is gone. Others are refused meanwhile.
func TestUnfinished(t *testing.T) {
	answer := bytes.Repeat([]byte("x"), 16<<20)
	answers, bodies := &Bytes{All: 20 << 20, Each: 20 << 20}, &Bytes{All: 6000, Each: 6000}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var body Body
		if err := bodies.ReadBody(&body, w, r, "a", 9000); err != nil {
			AnswerUnread(w, r)
			status := http.StatusBadRequest
			if errors.Is(err, ErrBusy) {
				status = http.StatusServiceUnavailable
			}
			http.Error(w, err.Error(), status)
			return
		}
		if r.URL.Path == "/refused" {
			AnswerUnread(w, r)
			http.Error(w, "refused", http.StatusBadRequest)
			return
		}
		release, err := answers.Reserve(w, r, "a", len(answer))
		if err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		defer release()
		_, _ = w.Write(answer)
	}))
	defer srv.Close()
	get := func(body string) int {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, srv.URL, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		var all bytes.Buffer
		if _, err := all.ReadFrom(resp.Body); err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode
	}
	for _, tt := range []struct {
		what string
		head string
		held *Bytes
	}{
		{"an answer that nobody reads", "GET / HTTP/1.1\r\nHost: a\r\n\r\n", answers},
		{"a body that does not come", "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9000\r\n\r\n" + strings.Repeat("x", 8999), bodies},
	} {
		conn, err := net.Dial("tcp", strings.TrimPrefix(srv.URL, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := fmt.Fprint(conn, tt.head); err != nil {
			t.Fatal(err)
		}
		tt.held.until(t, true)
		if got := get(strings.Repeat("x", 6000)); got != http.StatusServiceUnavailable {
			t.Errorf("%s: another request got %d, want 503", tt.what, got)
		}
		_ = conn.Close()
		tt.held.until(t, false)
		if got := get("x"); got != http.StatusOK {
			t.Errorf("%s: after its client is gone, another request got %d", tt.what, got)
		}
	}
	for _, body := range []io.Reader{strings.NewReader("x"), io.MultiReader(strings.NewReader("x"))} { // the second has no length
		resp, err := http.Post(srv.URL+"/refused", "text/plain", body)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != http.StatusBadRequest || resp.Close {
			t.Errorf("a body that was read: got %d, closed %t", resp.StatusCode, resp.Close)
		}
	}
	if got := get(strings.Repeat("x", 9001)); got != http.StatusBadRequest {
		t.Errorf("a body that is too long: got %d", got)
	}
}

// Answers that one HTTP/2 client does not read count, whatever their length. A failure means that one connection can hold any number of them.
func TestUnreadStreams(t *testing.T) {
	const each, most = 32 << 10, 4
	answers := &Bytes{All: most * each, Each: most * each}
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		release, err := answers.Reserve(w, r, "a", each)
		if err != nil {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		defer release()
		_, _ = w.Write(make([]byte, each))
	}))
	srv.EnableHTTP2 = true
	srv.StartTLS()
	defer srv.Close()
	client := srv.Client()
	client.Transport.(*http.Transport).HTTP2 = &http.HTTP2Config{MaxReceiveBufferPerStream: 4 << 10} // unread bytes that the client takes
	get := func() *http.Response {
		t.Helper()
		resp, err := client.Get(srv.URL)
		if err != nil {
			t.Fatal(err)
		}
		if resp.ProtoMajor != 2 {
			t.Fatalf("the answer came over %s, want HTTP/2", resp.Proto)
		}
		return resp
	}
	var unread []*http.Response
	for i := range most + 1 {
		resp := get()
		unread = append(unread, resp)
		want := http.StatusOK
		if i == most {
			want = http.StatusServiceUnavailable
		}
		if resp.StatusCode != want {
			t.Errorf("answer %d of an unread %d: got %d, want %d", i+1, most, resp.StatusCode, want)
		}
	}
	resp, err := client.Post(srv.URL, "text/plain", nil) // changes something
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("the answer to a change: got %v, %v, want 200", resp, err)
	}
	unread = append(unread, resp)
	for _, resp := range unread {
		_ = resp.Body.Close()
	}
	answers.until(t, false)
	resp = get()
	defer resp.Body.Close()
	if n, err := io.Copy(io.Discard, resp.Body); resp.StatusCode != http.StatusOK || n != each || err != nil {
		t.Errorf("after the streams are closed: got %d and %d bytes, %v", resp.StatusCode, n, err)
	}
}

// deadlines records the write deadlines that are set.
type deadlines struct {
	http.ResponseWriter
	set []time.Time
}

// SetWriteDeadline is called by [http.ResponseController].
func (d *deadlines) SetWriteDeadline(at time.Time) error {
	d.set = append(d.set, at)
	return nil
}

// Each bounded answer has a write deadline. A connection of HTTP/1 loses it afterwards, and a stream keeps it for the bytes that net/http
// sends after the handler.
func TestWriteDeadlines(t *testing.T) {
	for _, tt := range []struct{ proto, n, sets int }{{1, smallAnswer, 0}, {1, smallAnswer + 1, 2}, {2, 1, 1}, {3, 1, 1}} {
		w := &deadlines{ResponseWriter: httptest.NewRecorder()}
		release, err := (&Bytes{All: 1 << 20, Each: 1 << 20}).Reserve(w, &http.Request{ProtoMajor: tt.proto}, "a", tt.n)
		if err != nil {
			t.Fatal(err)
		}
		release()
		if len(w.set) != tt.sets || tt.sets > 0 && time.Until(w.set[0]) <= 0 {
			t.Errorf("HTTP/%d, %d bytes: deadlines %v, want %d", tt.proto, tt.n, w.set, tt.sets)
		}
	}
}

// stalled is a request body that does not come until the deadline of its connection.
type stalled struct {
	http.ResponseWriter
	over chan struct{}
}

func (s *stalled) Read([]byte) (int, error) { <-s.over; return 0, os.ErrDeadlineExceeded }
func (*stalled) Close() error               { return nil }

// SetReadDeadline is called by [http.ResponseController].
func (s *stalled) SetReadDeadline(time.Time) error { close(s.over); return nil }

// A body that does not come is given up after 19 to 20 s, whenever it begins, and others are not. A failure means that a client can hold a
// connection by sending nothing.
func TestStalledBodies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &Bytes{All: 1 << 20, Each: 1 << 20}
		var waiting sync.WaitGroup
		for i := range 5 {
			waiting.Go(func() {
				time.Sleep(time.Duration(i) * 700 * time.Millisecond)
				began, body := time.Now(), &stalled{httptest.NewRecorder(), make(chan struct{})}
				err := b.ReadBody(new(Body), body, &http.Request{ContentLength: 5, Body: body}, "a", 10)
				if took := time.Since(began); !errors.Is(err, os.ErrDeadlineExceeded) || took < 19*time.Second || took > 20*time.Second {
					t.Errorf("body %d: got %v after %v, want the end of its time after 19 to 20 s", i, err, took)
				}
				r := &http.Request{ContentLength: 1, Body: io.NopCloser(strings.NewReader("x"))}
				if err := b.ReadBody(new(Body), httptest.NewRecorder(), r, "a", 10); err != nil {
					t.Errorf("a body that has come: %v", err)
				}
			})
		}
		waiting.Wait()
		time.Sleep(checkEvery)
		synctest.Wait()
		if b.checked || len(b.unread) > 0 {
			t.Errorf("%d bodies are left, checked %v", len(b.unread), b.checked)
		}
	})
}

// After a refusal before the body, a client that sends no body loses its connection.
func TestRefusedBodies(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		AnswerUnread(w, r)
		w.WriteHeader(http.StatusUnauthorized)
	}))
	defer srv.Close()
	for _, length := range []string{"Content-Length: 5", "Content-Length: 100000", "Transfer-Encoding: chunked"} {
		conn, err := net.Dial("tcp", strings.TrimPrefix(srv.URL, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
		if _, err := fmt.Fprintf(conn, "POST / HTTP/1.1\r\nHost: a\r\n%s\r\n\r\n", length); err != nil {
			t.Fatal(err)
		}
		if answer, err := io.ReadAll(conn); err != nil || !strings.HasPrefix(string(answer), "HTTP/1.1 401") {
			t.Errorf("%s: got %q, %v, want 401 and the end of the connection", length, answer, err)
		}
	}
}
