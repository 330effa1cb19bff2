package caddymodule

import (
	"bufio"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/crypto/bcrypt"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/internal/freeport"
)

// basicHash returns a hash of the password of the users of basic_auth.
func basicHash(t *testing.T) string {
	t.Helper()
	hash, err := bcrypt.GenerateFromPassword([]byte("secret"), bcrypt.MinCost)
	if err != nil {
		t.Fatal(err)
	}
	return string(hash)
}

// basicField returns the credentials of a user of basic_auth.
func basicField(user string) string {
	return base64.StdEncoding.EncodeToString([]byte(user + ":secret"))
}

// Behind an authentication module of Caddy, the gateway counts on the user with its id as external id, and makes that user with the plan. A disabled
// user is refused, and so are an unknown caller without a plan, a caller without an id, and one whose user has no plan.
func TestIdentify(t *testing.T) {
	s, up := newServer(t), newRecorder(t, nil)
	site := func(options string) string {
		return "route {\nbasic_auth {\nann " + basicHash(t) + "\nbob " + basicHash(t) + "\n}\nlimitkeeper {\n" + options + "\n}\n" + up.proxy() +
			" {\nheader_up X-Seen \"{http.limitkeeper.user_id} {http.limitkeeper.user_name} {http.limitkeeper.plan_name} {http.limitkeeper.metadata.tier} {http.limitkeeper.key_id}|{http.auth.user.id}\"\n}\n}"
	}
	s.Start("store memory", site("identify {http.auth.user.id} plan Basic"))
	ten := s.Tenant("default", 10)
	as := func(name string) (int, string, string) {
		t.Helper()
		got := s.Get("/x", "Authorization: Basic "+basicField(name))
		return got.StatusCode, got.Text, got.Header.Get("X-RateLimit-Remaining")
	}
	if status, text, _ := as("ann"); status != 403 || !strings.Contains(text, `"reason":"unknown"`) {
		t.Errorf("without the plan in the account: got %d %s, want 403", status, text)
	}
	s.WaitLog("no active plan has the name", 1)
	pl, err := s.Service().CreatePlan(t.Context(), ten.Account, core.PlanPatch{Name: new("Basic"), Limit: core.Some[int64](20), Period: new("day")})
	s.Must(err)
	var wg sync.WaitGroup
	for range 8 { // only one makes the user
		wg.Go(func() {
			if status, text, _ := as("ann"); status != 200 {
				t.Errorf("got %d %s", status, text)
			}
		})
	}
	wg.Wait()
	if _, _, left := as("ann"); left != "11" {
		t.Errorf("after 9 requests %s of 20 are left, want 11", left)
	}
	users, n, err := s.Service().Users(t.Context(), ten.Account, core.UserFilter{ExternalID: "ann"}, core.Page{Number: 1, Size: 9})
	s.Must(err)
	if n != 1 || users[0].PlanID != pl.ID || users[0].Name != "ann" {
		t.Fatalf("got %d users %+v, want one with the plan", n, users)
	}
	if got, want := up.last.Load().Header.Get("X-Seen"), fmt.Sprintf("%d ann Basic  |ann", users[0].ID); got != want {
		t.Errorf("the upstream saw %q, want %q", got, want)
	}
	if _, total, err := s.Service().UserHistory(t.Context(), ten.Account, users[0].ID, core.Page{Number: 1, Size: 1}); err != nil || total != 9 {
		t.Errorf("the history has %d entries, want 9: %v", total, err)
	}
	if u, err := s.Service().UserUsage(t.Context(), ten.Account, users[0].ID); err != nil || u.Used != 9 || u.Limit != 20 {
		t.Errorf("the usage of a user without keys: got %+v, %v, want 9 of 20", u, err)
	}
	for value, forwarded := range map[string]string{ten.Secret: "", "the upstream's own": "the upstream's own"} {
		if s.Get("/x", "Authorization: Basic "+basicField("ann"), "X-API-Key: "+value); up.last.Load().Header.Get("X-API-Key") != forwarded {
			t.Errorf("the upstream saw the key %q, want %q", up.last.Load().Header.Get("X-API-Key"), forwarded)
		}
	}
	change := func(p core.UserPatch, want int, says string) {
		t.Helper()
		_, err := s.Service().UpdateUser(t.Context(), ten.Account, users[0].ID, p)
		s.Must(err)
		if status, text, _ := as("ann"); status != want || !strings.Contains(text, says) {
			t.Errorf("after %+v: got %d %s, want %d and %q", p, status, text, want, says)
		}
	}
	change(core.UserPatch{Disabled: new(true)}, 403, "API_KEY_DISABLED")
	change(core.UserPatch{Disabled: new(false)}, 200, "")
	change(core.UserPatch{Overrides: core.Some([]core.Override{{Meter: "requests", Max: 5, Period: core.Day}})}, 429, `"of":"user"`)
	change(core.UserPatch{PlanID: core.Null[string]()}, 403, "has no plan")
	if list, _, err := s.Service().UserHistory(t.Context(), ten.Account, users[0].ID, core.Page{Number: 1, Size: 1}); err != nil || list[0].Reason != core.ReasonRestricted {
		t.Errorf("the newest entry of the history: got %+v, %v, want a refusal", list, err)
	}
	change(core.UserPatch{ExternalID: core.Some("other")}, 200, "") // another ann is made
	s.Must(s.Service().DeleteUser(t.Context(), ten.Account, users[0].ID))
	if got := s.Get("/x"); got.StatusCode != 401 {
		t.Errorf("without a password: got %d, want 401", got.StatusCode)
	}

	s.Start("store memory", site("identify {http.auth.user.id}"))
	if status, text, _ := as("bob"); status != 403 || !strings.Contains(text, "The caller is unknown") {
		t.Errorf("an unknown caller: got %d %s, want 403", status, text)
	}
	s.Start("store memory", site("identify {http.vars.nobody}"))
	if status, text, _ := as("ann"); status != 401 || !strings.Contains(text, "not authenticated") {
		t.Errorf("without an id: got %d %s, want 401", status, text)
	}
}

// documented returns the n-th Caddyfile of a section of docs/recipes.md, with its site at an address, and its upstream.
func documented(t *testing.T, heading string, n int, site string, up *recorder) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "docs", "recipes.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, found := strings.Cut(string(text), heading+"\n")
	rest, _, _ = strings.Cut(rest, "\n## ")
	blocks := regexp.MustCompile("(?s)```(?:caddyfile|text)\n(.*?)```").FindAllStringSubmatch(rest, -1)
	if !found || len(blocks) <= n {
		t.Fatalf("%s has no Caddyfile %d", heading, n)
	}
	code := strings.Replace(blocks[n][1], "gateway.example.com {", site+" {", 1)
	return strings.Replace(code, "reverse_proxy 127.0.0.1:9000", up.proxy(), 1)
}

const identifyRecipes = "## Callers that you authenticate yourself"

// With the recipe for a JWT, the subject of a valid token is the user, and nothing that the client says of itself.
func TestIdentifyByToken(t *testing.T) {
	s, up := newServer(t), newRecorder(t, nil)
	secret := []byte("the secret of the identity provider")
	verifier := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		header, signed, _ := strings.Cut(strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer "), ".")
		payload, signature, _ := strings.Cut(signed, ".")
		mac := hmac.New(sha256.New, secret)
		mac.Write([]byte(header + "." + payload))
		given, err := base64.RawURLEncoding.DecodeString(signature)
		var claims struct{ Sub string }
		text, _ := base64.RawURLEncoding.DecodeString(payload)
		if err != nil || !hmac.Equal(given, mac.Sum(nil)) || json.Unmarshal(text, &claims) != nil {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		w.Header().Set("X-User-Id", claims.Sub)
	}))
	t.Cleanup(verifier.Close)
	token := func(subject string) string {
		text := base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"HS256"}`)) + "." + base64.RawURLEncoding.EncodeToString([]byte(`{"sub":"`+subject+`"}`))
		mac := hmac.New(sha256.New, secret)
		mac.Write([]byte(text))
		return text + "." + base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
	}
	s.Start("store memory", "respond ok")
	port := freeport.Take(t)
	site := strings.Replace(documented(t, identifyRecipes, 0, "http://127.0.0.1:"+port, up), "127.0.0.1:9091", verifier.Listener.Addr().String(), 1)
	s.Must(s.Load(s.Config("store memory", "respond ok") + "\n" + site))
	ten := s.Tenant("default", 10)
	_, err := s.Service().CreatePlan(t.Context(), ten.Account, core.PlanPatch{Name: new("Basic"), Limit: core.Some[int64](1), Period: new("year")})
	s.Must(err)
	for _, test := range []struct {
		token, spoofed string
		want           int
	}{
		{token("ann"), "bob", 200}, {token("ann"), "", 429}, {token("bob"), "ann", 200}, {token("ann") + "x", "ann", 401}, {"", "ann", 401},
	} {
		r, err := http.NewRequest("GET", "http://127.0.0.1:"+port+"/x", nil)
		s.Must(err)
		r.Header.Set("Authorization", "Bearer "+test.token)
		r.Header.Set("X-User-Id", test.spoofed)
		if got := s.Do(r); got.StatusCode != test.want {
			t.Errorf("%+v: got %d %s, want %d", test, got.StatusCode, got.Text, test.want)
		}
	}
	if got := up.last.Load().Header.Get("X-User-Id"); got != "bob" {
		t.Errorf("the upstream saw the user %q, want bob", got)
	}
}

// With the recipe for client certificates, the subject of a certificate of the company is the user. Other certificates, and none, get no connection.
func TestIdentifyByCertificate(t *testing.T) {
	s, up := newServer(t), newRecorder(t, nil)
	ca, caKey := certificate(t, "company", nil, nil)
	foreign, foreignKey := certificate(t, "stranger", nil, nil)
	file := filepath.Join(s.Dir, "clients.pem")
	s.Must(os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: ca.Raw}), 0o600))
	s.Start("store memory", "respond ok")
	port := freeport.Take(t)
	site := strings.Replace(documented(t, identifyRecipes, 1, "https://localhost:"+port, up), "/etc/caddy/clients.pem", file, 1)
	own, ownKey := certificate(t, "localhost", nil, nil)
	der, err := x509.MarshalECPrivateKey(ownKey)
	s.Must(err)
	pair := filepath.Join(s.Dir, "server.pem")
	s.Must(os.WriteFile(pair, append(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: own.Raw}), pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der})...), 0o600))
	site = strings.Replace(site, "tls {", "tls "+pair+" "+pair+" {", 1)
	s.Must(s.Load(s.Config("store memory", "respond ok") + "\n" + site))
	ten := s.Tenant("default", 10)
	_, err = s.Service().CreatePlan(t.Context(), ten.Account, core.PlanPatch{Name: new("Basic"), Limit: core.Some[int64](1), Period: new("year")})
	s.Must(err)
	get := func(of ...tls.Certificate) int {
		client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true, Certificates: of}}}
		defer client.CloseIdleConnections()
		resp, err := client.Get("https://localhost:" + port + "/x")
		if err != nil {
			t.Log(err)
			return 0
		}
		defer resp.Body.Close()
		return resp.StatusCode
	}
	signed := func(name string, by *x509.Certificate, key *ecdsa.PrivateKey) tls.Certificate {
		c, k := certificate(t, name, by, key)
		return tls.Certificate{Certificate: [][]byte{c.Raw}, PrivateKey: k}
	}
	ann, bob := signed("ann", ca, caKey), signed("bob", ca, caKey)
	for name, test := range map[string]struct {
		certificates []tls.Certificate
		want         []int
	}{
		"ann": {[]tls.Certificate{ann}, []int{200, 429}}, "bob": {[]tls.Certificate{bob}, []int{200, 429}},
		"nobody": {nil, []int{0}}, "of another company": {[]tls.Certificate{signed("ann", foreign, foreignKey)}, []int{0}},
	} {
		for _, want := range test.want {
			if got := get(test.certificates...); got != want {
				t.Errorf("%s: got %d, want %d", name, got, want)
			}
		}
	}
	if _, n, err := s.Service().Users(t.Context(), ten.Account, core.UserFilter{ExternalID: "CN=ann"}, core.Page{Number: 1, Size: 1}); err != nil || n != 1 {
		t.Errorf("%d users have the subject CN=ann, want 1: %v", n, err)
	}
}

// certificate returns a certificate for a name and its private key. The certificate by signs it with byKey; with nil, it signs itself.
func certificate(t *testing.T, name string, by *x509.Certificate, byKey *ecdsa.PrivateKey) (*x509.Certificate, *ecdsa.PrivateKey) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		DNSNames: []string{name}, IsCA: by == nil, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
	if by == nil {
		by, byKey = c, key
	}
	raw, err := x509.CreateCertificate(rand.Reader, c, by, &key.PublicKey, byKey)
	if err != nil {
		t.Fatal(err)
	}
	if c, err = x509.ParseCertificate(raw); err != nil {
		t.Fatal(err)
	}
	return c, key
}

// With the recipe for streams, a WebSocket is counted once and stays open over a reload; without it, the reload closes the connection.
func TestStreamsOverReload(t *testing.T) {
	upgrade := func(w http.ResponseWriter, _ *http.Request) {
		conn, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		defer conn.Close()
		_, _ = rw.WriteString("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
		_ = rw.Flush()
		_, _ = io.Copy(conn, rw) // echoes each message
	}
	for _, stays := range []bool{true, false} {
		t.Run(fmt.Sprint("it stays: ", stays), func(t *testing.T) {
			s, up := newServer(t), newRecorder(t, upgrade)
			s.Start("store memory", "respond ok")
			port := freeport.Take(t)
			site := documented(t, "## WebSocket, server-sent events, gRPC", 0, "http://127.0.0.1:"+port, up)
			if !stays {
				site = strings.Replace(site, "stream_close_delay 1h", "", 1)
			}
			s.Must(s.Load(s.Config("store memory", "respond ok") + "\n" + site))
			ten := s.Tenant("default", 10)
			conn, err := net.Dial("tcp", "127.0.0.1:"+port)
			s.Must(err)
			defer conn.Close()
			_, err = fmt.Fprintf(conn, "GET / HTTP/1.1\r\nHost: 127.0.0.1:%s\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nX-API-Key: %s\r\n\r\n", port, ten.Secret)
			s.Must(err)
			r := bufio.NewReader(conn)
			if resp, err := http.ReadResponse(r, nil); err != nil || resp.StatusCode != http.StatusSwitchingProtocols || resp.Header.Get("X-RateLimit-Remaining") != "9" {
				t.Fatalf("got %v, %v, want 101 and 9 requests left", resp, err)
			}
			echo := func() error {
				_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
				if _, err := io.WriteString(conn, "ping\n"); err != nil {
					return err
				}
				_, err := r.ReadString('\n')
				return err
			}
			s.Must(echo())
			s.Must(s.Load(s.Config("store memory", "respond changed") + "\n" + site))
			if err := echo(); (err == nil) != stays {
				t.Errorf("after a reload: got %v, want the connection to stay: %t", err, stays)
			}
			u, err := s.Service().KeyUsage(t.Context(), ten.Account, ten.Key.ID)
			if s.Must(err); u.Used != 1 {
				t.Errorf("the stream counted %d times, want once", u.Used)
			}
		})
	}
}
