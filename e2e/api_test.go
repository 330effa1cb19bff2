package e2e

import (
	"bytes"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/limitkeeper/limitkeeper/internal/freeport"
)

// site is a server with the API and a gateway on one plain port: it believes its
// clients on this machine that they came over HTTPS.
type site struct {
	t              *testing.T
	dir            string // everything is below
	port, admin    string
	url            string // of the API
	config         string // file
	owner          string // the owner's key
	accessLog, log string // files
	env            []string
	within         []string // a command that runs the binary, such as unshare
	starts         int
}

// newSite writes the config of a site on a directory of its own. The upstream is a
// directive.
func newSite(t *testing.T, upstream string) *site {
	t.Helper()
	return newSiteOn(t, "badger data", "", upstream)
}

// newSiteOn writes the config of a site on a store, with more options for its gateway.
func newSiteOn(t *testing.T, store, options, upstream string) *site {
	t.Helper()
	s := &site{t: t, dir: t.TempDir(), port: freeport.Take(t), admin: freeport.Take(t), owner: "lk_e2eOwnersKey00000000000000000"}
	s.url = "http://127.0.0.1:" + s.port
	s.config = filepath.Join(s.dir, "Caddyfile")
	s.accessLog, s.log = filepath.Join(s.dir, "access.log"), filepath.Join(s.dir, "server.log")
	text := fmt.Sprintf(`{
	admin localhost:%[1]s
	persist_config off
	log {
		output file %[2]s/server.log
		format limitkeeper
	}
	servers {
		trusted_proxies static private_ranges
	}
	metrics
	limitkeeper {
		store %[5]s
		service_rate_limit off
		account default {
			key {env.LIMITKEEPER_KEY}
		}
	}
}
http://:%[3]s {
	log {
		output file %[2]s/access.log
		format limitkeeper
	}
	@api path /functions/* /dashboard/*
	handle @api {
		limitkeeper_api
	}
	handle {
		limitkeeper {
			key header X-API-Key
			key query api_key
			key cookie session
			key bearer
			%[6]s
		}
		%[4]s
	}
}
`, s.admin, s.dir, s.port, upstream, store, options)
	if err := os.WriteFile(s.config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return s
}

// start runs the binary until it serves.
func (s *site) start() *process {
	s.t.Helper()
	return s.startBinary(binary)
}

// startBinary runs a binary until it serves.
func (s *site) startBinary(binary string) *process {
	s.t.Helper()
	s.starts++
	env := append(os.Environ(), append(s.env, "HOME="+s.dir, "LIMITKEEPER_KEY="+s.owner)...)
	command := slices.Concat(s.within, []string{binary, "run", "--config", s.config})
	p, err := launch(command[0], s.dir, fmt.Sprintf("run%d", s.starts), env, command[1:]...)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(p.kill)
	for deadline := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
		if status, b, err := s.call(http.MethodGet, "/functions/v1/health", nil); err == nil && status == 200 && bytes.Contains(b, []byte("ok")) {
			return p
		}
		select {
		case <-p.done:
			s.t.Fatalf("the server ended with %d:\n%s", p.code, p.output())
		default:
		}
		if time.Now().After(deadline) {
			s.t.Fatalf("the server does not serve:\n%s", p.output())
		}
	}
}

// client has enough connections for the loads. It accepts the certificates of the local CA.
var client = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 128, MaxConnsPerHost: 128,
	TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}, Timeout: patience}

// call sends a request with the owner's key.
func (s *site) call(method, path string, body any) (int, []byte, error) {
	return s.send(method, path, body, map[string]string{
		"Authorization": "Bearer " + s.owner, "X-Forwarded-Proto": "https", "Content-Type": "application/json"})
}

func (s *site) send(method, path string, body any, header map[string]string) (int, []byte, error) {
	var payload io.Reader
	if body != nil {
		b, err := json.Marshal(body)
		if err != nil {
			return 0, nil, err
		}
		payload = bytes.NewReader(b)
	}
	r, err := http.NewRequest(method, s.url+path, payload)
	if err != nil {
		return 0, nil, err
	}
	for name, v := range header {
		r.Header.Set(name, v)
	}
	resp, err := client.Do(r)
	if err != nil {
		return 0, nil, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return resp.StatusCode, b, err
}

// must sends a request with the owner's key that works, and reads the member data of the
// answer into v.
func (s *site) must(method, path string, body, v any) {
	s.t.Helper()
	status, b, err := s.call(method, path, body)
	if err != nil || status >= 300 {
		s.t.Fatalf("%s %s: got %d %s (%v)", method, path, status, b, err)
	}
	answer := struct{ Data any }{v}
	if err := json.Unmarshal(b, &answer); err != nil {
		s.t.Fatalf("%s %s: %v in %s", method, path, err, b)
	}
}

// newKey makes a plan with a quota a year, a user, and a key, and returns its id and
// value.
func (s *site) newKey(quota int64) (id, secret string) {
	s.t.Helper()
	var plan, key struct {
		ID     string
		APIKey string `json:"api_key"`
	}
	var user struct {
		ID int64 `json:"user_id"`
	}
	s.must("POST", "/functions/v1/plans", map[string]any{"name": "p", "max_requests": quota, "request_period": "year"}, &plan)
	s.must("POST", "/functions/v1/users", map[string]any{"name": "u"}, &user)
	s.must("POST", "/functions/v1/keys", map[string]any{"name": "k", "user_id": user.ID, "plan_id": plan.ID}, &key)
	return key.ID, key.APIKey
}

// used returns what a key has used, and how many requests its history has.
func (s *site) used(key string) (used, entries int64) {
	s.t.Helper()
	var usage struct {
		CurrentUsage int64 `json:"current_usage"`
	}
	s.must("GET", "/functions/v1/keys/"+key+"/usage", nil, &usage)
	var history struct{ Count int64 }
	s.must("GET", "/functions/v1/keys/"+key+"/requests?limit=1", nil, &history)
	return usage.CurrentUsage, history.Count
}

// wantAnswer checks the status of an answer and a part of its body.
func wantAnswer(t *testing.T, resp *http.Response, status int, part string) {
	t.Helper()
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	if resp.StatusCode != status || !strings.Contains(string(b), part) {
		t.Errorf("got %d %q, want %d with %q", resp.StatusCode, b, status, part)
	}
}
