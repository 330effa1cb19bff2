package adminapi

import (
	"context"
	"log/slog"
	"net/http"
	"net/url"
	"path"
	"strings"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/service"
	"github.com/limitkeeper/limitkeeper/internal/exchange"
	"github.com/limitkeeper/limitkeeper/internal/logthrottle"
)

// Config is the configuration of a [Server]. All members are required.
type Config struct {
	// Service returns the service, or nil while its store is not open; requests then get 503. The
	// server calls Service for each request.
	Service func() *service.Service
	// Clock returns the state of the service's clock, for GET /health.
	Clock func() core.ClockState
	// Secure reports whether a request came over HTTPS.
	Secure func(*http.Request) bool
	// Stopping reports whether the server is about to stop, for GET /health/ready.
	Stopping func(*http.Request) bool
	// ClientIP returns the address of the client.
	ClientIP func(*http.Request) string
	// OnDecision is called with the duration of each decision of POST /validate.
	OnDecision func(took time.Duration)
	// OnSettled is called after each settlement or release of a hold, with the usage of its counter, as a decision has it.
	OnSettled func(*service.Settled, *service.Decision)
	// TestWebhook sends a test to a webhook, and returns the attempt.
	TestWebhook func(ctx context.Context, account, id string) (*core.Attempt, error)
	// OnFault is called with the cause of each 500 and 503 answer, except of health checks and of clients that have disconnected.
	OnFault func(error)
	// Logger gets the causes of 500 and 503 answers with the request id, and never a secret.
	Logger *slog.Logger

	bodies, answers *exchange.Bytes // of requests that are being read, and of answers that are being written
}

// Server answers the REST API below /functions/v1. It is safe for concurrent use.
type Server struct {
	config   Config
	mux      *http.ServeMux
	paths    map[string]*endpoint // paths without an id, which need no mux
	notFound *endpoint            // answers unknown paths
}

// New returns a server.
func New(c Config) *Server {
	c.bodies, c.answers = &exchange.Bytes{All: 64 << 20, Each: 4 << 20}, &exchange.Bytes{All: 128 << 20, Each: 16 << 20}
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
	// ServeMux would redirect a path that is not clean, and the client would send its key to the
	// target.
	if p := r.URL.EscapedPath(); p == "" || p[0] != '/' || path.Clean(p) != p {
		s.notFound.ServeHTTP(w, r)
		return
	}
	s.mux.ServeHTTP(w, r)
}

type call struct {
	config     *Config
	w          http.ResponseWriter
	r          *http.Request
	ids        [1]string // X-Request-Id, as a value of a header
	validation bool      // errors are answered in the form of a validation
	public     bool      // the route needs no owner's key
	faults     *logthrottle.Throttle

	values url.Values // the parameters of the query

	// Set by authenticate.
	svc     *service.Service
	owner   *core.OwnerKey
	account string
}

func (c *call) ctx() context.Context { return c.r.Context() }

// service returns the service, or [core.ErrUnavailable] while the store is not open.
func (c *call) service() (*service.Service, error) {
	if svc := c.config.Service(); svc != nil {
		return svc, nil
	}
	return nil, core.ErrUnavailable
}

var _ http.Handler = (*Server)(nil)
