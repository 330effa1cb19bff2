package deploy

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// serveUpstream serves the service behind the gateway, on port 9000.
func (m *machine) serveUpstream() {
	m.t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:9000")
	must(m.t, err)
	m.t.Cleanup(func() { _ = ln.Close() })
	go func() {
		_ = http.Serve(ln, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "Hello") }))
	}()
}

// client returns a client that trusts the certificate authority of the machine. Every host is the machine.
func (m *machine) client() *http.Client {
	transport := &http.Transport{DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
		_, port, err := net.SplitHostPort(addr)
		if err != nil {
			return nil, err
		}
		return new(net.Dialer).DialContext(ctx, network, "127.0.0.1:"+port)
	}}
	if ca, err := os.ReadFile(filepath.Join(m.root, "var/lib/limitkeeper/caddy/pki/authorities/local/root.crt")); err == nil {
		roots := x509.NewCertPool()
		roots.AppendCertsFromPEM(ca)
		transport.TLSClientConfig = &tls.Config{RootCAs: roots}
	}
	m.t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Timeout: patience}
}

// status returns the status of a GET, 0 without an answer.
func (m *machine) status(url string) int {
	resp, err := m.client().Get(url)
	if err != nil {
		return 0
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, resp.Body)
	return resp.StatusCode
}

// firstRefusal creates an account, a plan of two requests, a user and a key, and sends requests until the gateway refuses one.
// createAccount is the command that creates the account and prints JSON.
func (m *machine) firstRefusal(createAccount ...string) {
	m.t.Helper()
	m.await("the certificates of the sites", func() bool {
		return m.status(fmt.Sprintf(m.sites, "api")+"/") != 0 && m.status(fmt.Sprintf(m.sites, "gateway")+"/") != 0
	})
	var account struct{ Key string }
	out, err := m.output(createAccount...)
	if err != nil {
		m.t.Fatal(err)
	}
	must(m.t, json.Unmarshal([]byte(out), &account))
	client := m.client()
	send := func(method, url, body string, headers ...string) (int, string) {
		m.t.Helper()
		req, err := http.NewRequest(method, url, strings.NewReader(body))
		must(m.t, err)
		req.Header.Set("X-Forwarded-Proto", "https") // of an ingress, where the sites trust one
		for pair := range slices.Chunk(headers, 2) {
			req.Header.Set(pair[0], pair[1])
		}
		resp, err := client.Do(req)
		must(m.t, err)
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		must(m.t, err)
		return resp.StatusCode, string(text)
	}
	create := func(path, body string) (answer struct {
		ID     string
		APIKey string `json:"api_key"`
		UserID int    `json:"user_id"`
	}) {
		m.t.Helper()
		status, text := send("POST", fmt.Sprintf(m.sites, "api")+"/functions/v1"+path, body,
			"Authorization", "Bearer "+account.Key, "Content-Type", "application/json")
		if status != http.StatusCreated {
			m.t.Fatalf("POST %s: got %d %s", path, status, text)
		}
		must(m.t, json.Unmarshal([]byte(text), &struct{ Data any }{&answer}))
		return answer
	}
	plan := create("/plans", `{"name": "Two", "max_requests": 2, "request_period": "year"}`)
	user := create("/users", `{"name": "First customer", "email": "dev@customer.example"}`)
	key := create("/keys", fmt.Sprintf(`{"name": "Production", "user_id": %d, "plan_id": %q}`, user.UserID, plan.ID))
	for i, want := range []int{http.StatusOK, http.StatusOK, http.StatusTooManyRequests} {
		if status, text := send("GET", fmt.Sprintf(m.sites, "gateway")+"/", "", "X-API-Key", key.APIKey); status != want {
			m.t.Errorf("request %d: got %d %s, want %d", i+1, status, text, want)
		}
	}
}
