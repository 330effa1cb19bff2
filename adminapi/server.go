package adminapi

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"path"
	"strings"

	"github.com/limitkeeper/limitkeeper/core"
)

// Config says how a [Server] is made. Service is required; the zero value of every
// other member stands for its default.
type Config struct {
	// Service returns the service that answers, or nil while its store is not open:
	// until then requests are answered with 503. It is called for every request.
	Service func() *core.Service
	// Clock returns a reading of the service's clock, for the health. By default the clock is
	// never held.
	Clock func() core.ClockState
	// Secure reports whether a request came over HTTPS. By default that is whether its
	// connection is a TLS connection.
	Secure func(*http.Request) bool
	// ClientIP returns the address that a request came from. By default that is the
	// other end of its connection.
	ClientIP func(*http.Request) string
	// Logger gets the causes of 500 and 503, with the request id and never with a
	// secret. By default they are dropped.
	Logger *slog.Logger
}

// Server answers the REST API below /functions/v1. It is safe for concurrent use.
type Server struct {
	config   Config
	mux      *http.ServeMux
	paths    map[string]*endpoint // those without an id in them: they need no mux
	notFound *endpoint            // answers for every path that there is not
}

// New returns a server.
func New(c Config) *Server {
	if c.Clock == nil {
		c.Clock = func() core.ClockState { return core.ClockState{} }
	}
	if c.Secure == nil {
		c.Secure = func(r *http.Request) bool { return r.TLS != nil }
	}
	if c.ClientIP == nil {
		c.ClientIP = remoteHost
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	s := &Server{config: c, mux: http.NewServeMux(), paths: map[string]*endpoint{}}
	s.notFound = &endpoint{config: &s.config}
	s.mux.Handle("/", s.notFound)
	for _, e := range endpoints(&s.config) {
		s.mux.Handle(e.path, e)
		if !strings.Contains(e.path, "{") {
			s.paths[e.path] = e
		}
	}
	return s
}

// ServeHTTP implements [http.Handler].
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if e, ok := s.paths[r.URL.Path]; ok && r.URL.RawPath == "" {
		r.Pattern = e.path
		e.ServeHTTP(w, r)
		return
	}
	// ServeMux would redirect a path that is not clean, and the client would send its
	// key to wherever that leads.
	if p := r.URL.EscapedPath(); p == "" || p[0] != '/' || path.Clean(p) != p {
		s.notFound.ServeHTTP(w, r)
		return
	}
	s.mux.ServeHTTP(w, r)
}

// remoteHost returns the other end of the connection without its port.
func remoteHost(r *http.Request) string {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		return r.RemoteAddr
	}
	return host
}

// call is one request on its way through the API.
type call struct {
	config     *Config
	w          http.ResponseWriter
	r          *http.Request
	id         string    // X-Request-Id
	ids        [1]string // the value of that field
	validation bool      // errors are answered in the form of a verdict

	values url.Values // the parameters of the query

	// Set by authenticate.
	svc     *core.Service
	owner   *core.OwnerKey
	account string
}

func newCall(c *Config, w http.ResponseWriter, r *http.Request) *call {
	id := requestID()
	return &call{config: c, w: w, r: r, id: id, ids: [1]string{id}}
}

// requestID returns an id that no other request has. It need not be hard to guess.
func requestID() string {
	const (
		letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567" // of 5 bits
		each    = 64 / 5                             // that a number gives
	)
	var id [26]byte
	var bits uint64
	for i := range id {
		if i%each == 0 {
			bits = rand.Uint64()
		}
		id[i] = letters[bits%32]
		bits /= 32
	}
	return string(id[:])
}

func (c *call) ctx() context.Context { return c.r.Context() }

// service returns the service, or [core.ErrUnavailable] while there is none.
func (c *call) service() (*core.Service, error) {
	if svc := c.config.Service(); svc != nil {
		return svc, nil
	}
	return nil, core.ErrUnavailable
}

var _ http.Handler = (*Server)(nil)
