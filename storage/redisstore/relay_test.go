package redisstore_test

import (
	"bytes"
	"net"
	"slices"
	"sync"
	"testing"
)

// relay is a TCP proxy between a store and its server. It recognizes the connections with client tracking.
type relay struct {
	l net.Listener

	mu      sync.Mutex
	server  string // of new connections
	conns   []*relayed
	refuses bool // refuse connections with client tracking
	open    sync.WaitGroup
}

// relayed is a connection through the relay.
type relayed struct {
	client, server net.Conn
	invalidations  bool
	stalled        chan struct{} // nil while data passes
}

func newRelay(t testing.TB, server string) *relay {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &relay{l: l, server: server}
	r.open.Go(r.serve)
	t.Cleanup(func() {
		_ = l.Close()
		r.resume()
		r.cut(func(*relayed) bool { return true })
		r.open.Wait()
	})
	return r
}

func (r *relay) Addr() string { return r.l.Addr().String() }

func (r *relay) serve() {
	for {
		client, err := r.l.Accept()
		if err != nil {
			return
		}
		r.mu.Lock()
		address := r.server
		r.mu.Unlock()
		server, err := net.Dial("tcp", address)
		if err != nil {
			_ = client.Close()
			continue
		}
		c := &relayed{client: client, server: server}
		r.mu.Lock()
		r.conns = append(r.conns, c)
		r.mu.Unlock()
		r.open.Go(func() { r.pass(c, server, client) })
		r.open.Go(func() { r.pass(c, client, server) })
	}
}

// pass copies data from one end to the other until either closes.
func (r *relay) pass(c *relayed, to, from net.Conn) {
	defer func() { _, _ = c.client.Close(), c.server.Close() }()
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		if err != nil || r.held(c, buf[:n]) {
			return
		}
		if _, err := to.Write(buf[:n]); err != nil {
			return
		}
	}
}

// held waits while the connection is stalled. It reports whether the connection is refused.
func (r *relay) held(c *relayed, sent []byte) bool {
	r.mu.Lock()
	if bytes.Contains(sent, []byte("TRACKING")) {
		c.invalidations = true
	}
	refused, stalled := c.invalidations && r.refuses, c.stalled
	r.mu.Unlock()
	if stalled != nil {
		<-stalled
	}
	return refused
}

// isInvalidationConn selects connections with client tracking.
func isInvalidationConn(c *relayed) bool { return c.invalidations }

// stall stops the data on some connections and keeps them open.
func (r *relay) stall(which func(*relayed) bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.conns {
		if which(c) && c.stalled == nil {
			c.stalled = make(chan struct{})
		}
	}
}

// resume ends stall and refuse.
func (r *relay) resume() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.refuses = false
	for _, c := range r.conns {
		if c.stalled != nil {
			close(c.stalled)
			c.stalled = nil
		}
	}
}

// refuse cuts connections with client tracking, and refuses new ones.
func (r *relay) refuse() {
	r.mu.Lock()
	r.refuses = true
	r.mu.Unlock()
	r.cut(isInvalidationConn)
}

// cut closes some connections.
func (r *relay) cut(which func(*relayed) bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.conns = slices.DeleteFunc(r.conns, func(c *relayed) bool {
		if !which(c) {
			return false
		}
		_, _ = c.client.Close(), c.server.Close()
		return true
	})
}
