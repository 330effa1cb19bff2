package caddymodule

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"

	"github.com/limitkeeper/limitkeeper/caddymodule/caddytest"
	"github.com/limitkeeper/limitkeeper/core/service"
	"github.com/limitkeeper/limitkeeper/internal/freeport"
)

// server is [caddytest.Server] with more methods.
type server struct{ *caddytest.Server }

// newServer returns a server that has not been given a config yet. Every store must be closed when the server has stopped.
func newServer(t *testing.T) *server {
	t.Helper()
	t.Cleanup(func() {
		stores.Range(func(key, _ any) bool {
			t.Errorf("the store %v is still open after the server has stopped", key)
			return true
		})
	})
	return &server{caddytest.New(t, func() (*service.Service, error) {
		running, err := RunningStore()
		if err != nil {
			return nil, err
		}
		return running.Service, nil
	})}
}

// rejected returns the text of a config that Caddy must reject, with the site at a port of its own: a config
// that fails while it starts may have accepted, and closed, a connection to a port that it shares with the running one.
func (s *server) rejected(options, site string) string {
	s.T.Helper()
	own := *s.Server
	own.Port = freeport.Take(s.T)
	return own.Config(options, site)
}

// used returns what the key of a tenant has used.
func (s *server) used(t *caddytest.Tenant) int64 {
	s.T.Helper()
	u, err := s.Service().KeyUsage(context.Background(), t.Account, t.Key.ID)
	s.Must(err)
	return u.Used
}

// recorder is an upstream that remembers the requests that reached it.
type recorder struct {
	*httptest.Server
	count atomic.Int64
	last  atomic.Pointer[http.Request]
}

// newRecorder starts an upstream that answers with answer, or "hello" if that is
// nil.
func newRecorder(t *testing.T, answer http.HandlerFunc) *recorder {
	t.Helper()
	rec := &recorder{}
	rec.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		rec.count.Add(1)
		rec.last.Store(r)
		if answer != nil {
			answer(w, r)
			return
		}
		_, _ = io.WriteString(w, "hello")
	}))
	t.Cleanup(rec.Close)
	return rec
}

// proxy returns the directive that hands requests to the upstream.
func (rec *recorder) proxy() string { return "reverse_proxy " + rec.Listener.Addr().String() }

// decoded returns a body of JSON.
func decoded(t *testing.T, body string) (v map[string]any) {
	t.Helper()
	d := json.NewDecoder(bytes.NewBufferString(body))
	if err := d.Decode(&v); err != nil {
		t.Fatalf("%v in %q", err, body)
	}
	return v
}
