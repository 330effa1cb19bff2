// Package caddytest runs Caddy with Limitkeeper in the process of a test. It does not import package caddymodule, so that
// the tests of caddymodule can use it. A test imports the package whose modules it needs.
package caddytest

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
	_ "github.com/caddyserver/caddy/v2/modules/standard"

	"github.com/limitkeeper/limitkeeper/core/service"
	"github.com/limitkeeper/limitkeeper/internal/freeport"
)

// apiBase is the prefix of the paths of the REST API.
const apiBase = "/functions/v1"

// Server is Caddy in this process. Only one can run at a time.
type Server struct {
	T       *testing.T
	Dir     string // of all files
	Port    string // of the site
	Admin   string // address of the admin endpoint
	LogFile string // file of all logs

	service func() (*service.Service, error)
}

// New returns a server that has not been given a config yet. service returns the running service. The server stops at the
// end of the test.
func New(t *testing.T, service func() (*service.Service, error)) *Server {
	t.Helper()
	s := &Server{T: t, Dir: t.TempDir(), Port: freeport.Take(t), Admin: "localhost:" + freeport.Take(t), service: service}
	s.LogFile = filepath.Join(s.Dir, "caddy.log")
	t.Cleanup(func() {
		MemoryFails.Store(false)
		if err := caddy.Stop(); err != nil {
			t.Errorf("stopping: %v", err)
		}
		if t.Failed() {
			b, _ := os.ReadFile(s.LogFile)
			t.Logf("the log:\n%s", b)
		}
	})
	return s
}

// Config returns a Caddyfile: the options of the app, and one site with the
// directives. %dir and %admin are replaced by the directory and the admin address.
func (s *Server) Config(options, site string) string {
	text := `{
		admin %admin
		persist_config off
		auto_https disable_redirects
		skip_install_trust
		storage file_system %dir/caddy
		log {
			output file %dir/caddy.log
			level DEBUG
			format limitkeeper
		}
		servers {
			trusted_proxies static private_ranges
		}
		metrics
		limitkeeper {
			` + options + `
		}
	}
	http://localhost:` + s.Port + `, http://127.0.0.1:` + s.Port + ` {
		log
		` + site + `
	}`
	return strings.NewReplacer("%dir", s.Dir, "%admin", s.Admin).Replace(text)
}

// Load loads a Caddyfile and returns the error of it.
func (s *Server) Load(text string) error {
	s.T.Helper()
	b, err := Adapt(text)
	if err != nil {
		return err
	}
	return caddy.Load(b, true)
}

// Start loads a config that must work, with the site at a port of its own: a config that
// is stopped may take a connection to its port for a moment after the load.
func (s *Server) Start(options, site string) {
	s.T.Helper()
	s.Port = freeport.Take(s.T)
	if err := s.Load(s.Config(options, site)); err != nil {
		s.T.Fatal(err)
	}
	Client.CloseIdleConnections()
}

// URL returns the address of a path of the site.
func (s *Server) URL(path string) string { return "http://127.0.0.1:" + s.Port + path }

// Service returns the running service.
func (s *Server) Service() *service.Service {
	s.T.Helper()
	svc, err := s.service()
	if err != nil {
		s.T.Fatal(err)
	}
	return svc
}

// Logged returns everything that was logged.
func (s *Server) Logged() string {
	s.T.Helper()
	b, err := os.ReadFile(s.LogFile)
	if err != nil {
		s.T.Fatal(err)
	}
	return string(b)
}

// WaitLog waits until the log holds the text n times: entries about a request are
// written after its answer.
func (s *Server) WaitLog(text string, n int) {
	s.T.Helper()
	Eventually(s.T, fmt.Sprintf("%d times %q in the log", n, text), func() bool {
		return strings.Count(s.Logged(), text) >= n
	})
}

// Reply is an answer with its body read.
type Reply struct {
	*http.Response
	Text string // the body
}

// Get sends a GET with header lines like "Name: value".
func (s *Server) Get(path string, headers ...string) Reply {
	s.T.Helper()
	return s.Send(http.MethodGet, path, "", headers...)
}

// Send sends a request with header lines like "Name: value".
func (s *Server) Send(method, path, body string, headers ...string) Reply {
	s.T.Helper()
	r, err := http.NewRequest(method, s.URL(path), strings.NewReader(body))
	if err != nil {
		s.T.Fatal(err)
	}
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		r.Header.Add(name, value)
	}
	return s.Do(r)
}

// Do sends a request and reads the answer.
func (s *Server) Do(r *http.Request) Reply {
	s.T.Helper()
	resp, err := Client.Do(r)
	if err != nil {
		s.T.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		s.T.Fatal(err)
	}
	return Reply{resp, string(b)}
}

// Client never follows redirects and keeps enough connections for the loads of the
// tests.
var Client = &http.Client{
	Transport:     &http.Transport{MaxIdleConnsPerHost: 128},
	CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
}

// Validate asks the API to decide, as behind a proxy that terminates TLS.
func (s *Server) Validate(owner, key string) Reply {
	s.T.Helper()
	body := fmt.Sprintf(`{"api_key":%q,"endpoint":"/x","method":"GET"}`, key)
	return s.Send(http.MethodPost, apiBase+"/validate", body, "Authorization: Bearer "+owner, "X-Forwarded-Proto: https")
}

// Must ends the test if err is not nil.
func (s *Server) Must(err error) {
	s.T.Helper()
	if err != nil {
		s.T.Fatal(err)
	}
}

// Scrape returns the metrics in Prometheus' text format. It tries again on a connection that the admin endpoint of the
// previous config has closed after a reload.
func (s *Server) Scrape() (text string) {
	s.T.Helper()
	Eventually(s.T, "the metrics", func() bool {
		resp, err := Client.Get("http://" + s.Admin + "/metrics")
		if err != nil {
			return false
		}
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		text = string(b)
		return err == nil && resp.StatusCode == http.StatusOK
	})
	return text
}

// Sample returns the value of a sample in the metrics, 0 when it is missing.
func Sample(metrics, labels string) (n int) {
	for line := range strings.Lines(metrics) {
		if rest, ok := strings.CutPrefix(line, labels+" "); ok {
			_, _ = fmt.Sscan(rest, &n)
		}
	}
	return n
}

// Adapt returns the JSON of a Caddyfile.
func Adapt(text string) ([]byte, error) {
	b, _, err := caddyconfig.GetAdapter("caddyfile").Adapt([]byte(text), map[string]any{"filename": "Caddyfile"})
	return b, err
}

// Both returns the directives of a site with the REST API and a gateway in front of a handler.
func Both(handler string) string {
	return "handle " + apiBase + "/* {\nlimitkeeper_api\n}\nhandle {\nlimitkeeper\n" + handler + "\n}"
}

// AccountOption returns the option for a configured account.
func AccountOption(name, key string) string { return "\naccount " + name + " {\nkey " + key + "\n}" }

// Eventually waits until ok holds.
func Eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(15 * time.Second); !ok(); {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain for %s", what)
		}
		time.Sleep(time.Millisecond)
	}
}
