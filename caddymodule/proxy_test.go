package caddymodule

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/textproto"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/limitkeeper/limitkeeper/caddymodule/caddytest"
	"github.com/limitkeeper/limitkeeper/internal/freeport"
)

// The upstream gets method, path, query and body unchanged, without the key.
func TestProxyRequestUnharmed(t *testing.T) {
	var body string
	s := newServer(t)
	up := newRecorder(t, func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		body = string(b)
		_, _ = io.Copy(w, strings.NewReader("got it"))
	})
	s.Start("store memory", `limitkeeper {
		key query api_key
		key cookie key
		key header X-API-Key
		key bearer
	}
	`+up.proxy())
	ten := s.Tenant("default", 100)
	keep := []string{"Accept-Language: de", "X-Custom: a", "X-Custom: b", "Cookie: a=b"}
	for _, tc := range []struct {
		name, method, path, wantPath string
		headers                      []string
	}{
		{"query", "DELETE", "/a%2Fb/%7e?x=1&api_key=" + ten.Secret + "&y=%20+&x=2", "/a%2Fb/%7e?x=1&y=%20+&x=2", nil},
		{"header", "PATCH", "/?x", "/?x", []string{"X-API-Key: " + ten.Secret}},
		{"bearer", "POST", "//a/../b", "//a/../b", []string{"Authorization: Bearer " + ten.Secret}},
		{"cookie", "OPTIONS", "/c", "/c", []string{"Cookie: key=" + ten.Secret}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			payload := strings.Repeat("0123456789", 10_000)
			got := s.Send(tc.method, tc.path, payload, append(tc.headers, keep...)...)
			if got.StatusCode != 200 || got.Text != "got it" {
				t.Fatalf("got %d %q", got.StatusCode, got.Text)
			}
			r := up.last.Load()
			if r.Method != tc.method || r.RequestURI != tc.wantPath || body != payload {
				t.Errorf("the upstream got %s %s with %d bytes, want %s %s with %d", r.Method, r.RequestURI, len(body), tc.method, tc.wantPath, len(payload))
			}
			for _, h := range []string{"X-Api-Key", "Authorization"} {
				if v := r.Header[h]; v != nil {
					t.Errorf("the upstream got %s %q", h, v)
				}
			}
			want := http.Header{}
			for _, h := range keep {
				name, value, _ := strings.Cut(h, ": ")
				want.Add(name, value)
			}
			for name := range want {
				if diff := cmp.Diff(want[name], r.Header[name]); diff != "" {
					t.Errorf("%s (-want +got):\n%s", name, diff)
				}
			}
		})
	}
}

// The documented way to protect a part of a site forwards no path without a key. A matcher on the
// directive alone forwards paths that an upstream may normalize to protected ones.
func TestProxyGuardedPath(t *testing.T) {
	paths := []string{"/v1", "/v1;a/x", "/v1%2fx", "//v1/x", "/V1;/x", "/", "/v1/x"}
	s, up := newServer(t), newRecorder(t, nil)
	s.Start("store memory", "handle /v1/* {\nlimitkeeper\n"+up.proxy()+"\n}\nhandle {\nrespond 404\n}")
	for _, path := range paths {
		if got := s.Get(path); got.StatusCode != 401 && got.StatusCode != 404 {
			t.Errorf("%s: got %d without a key, want 401 or 404", path, got.StatusCode)
		}
	}
	if n := up.count.Load(); n != 0 {
		t.Errorf("%d requests without a key reached the upstream", n)
	}
	s.Start("store memory", "limitkeeper /v1/*\n"+up.proxy())
	for _, path := range paths {
		s.Get(path)
	}
	if n := up.count.Load(); n == 0 {
		t.Error("a matcher guards every path, unlike what the documents say")
	}
}

// The upstream gets the user from header_up, as documented. With request_header in front of reverse_proxy a
// client could remove the field.
func TestProxyConnectionField(t *testing.T) {
	s, up := newServer(t), newRecorder(t, nil)
	s.Start("store memory", "limitkeeper\nrequest_header X-Early {http.limitkeeper.user_id}\n"+up.proxy()+" {\nheader_up X-User-Id {http.limitkeeper.user_id}\n}")
	ten := s.Tenant("default", 10)
	s.Get("/", "X-API-Key: "+ten.Secret, "Connection: X-User-Id, X-Early", "X-User-Id: 7")
	if h := up.last.Load().Header; h.Get("X-User-Id") != "1" || h.Get("X-Early") != "" {
		t.Errorf("the upstream got X-User-Id %q and X-Early %q, want 1 and none", h.Get("X-User-Id"), h.Get("X-Early"))
	}
}

// With keep_key the upstream gets the request unchanged.
func TestProxyKeepKey(t *testing.T) {
	s, up := newServer(t), newRecorder(t, nil)
	s.Start("store memory", "limitkeeper {\nkeep_key\nkey query k\nkey header X-API-Key\n}\n"+up.proxy())
	ten := s.Tenant("default", 100)
	s.Get("/?a&k="+ten.Secret, "X-API-Key: y")
	if r := up.last.Load(); r.RequestURI != "/?a&k="+ten.Secret || r.Header.Get("X-API-Key") != "y" {
		t.Errorf("the upstream got %s with %v", r.RequestURI, r.Header)
	}
}

// Streamed answers are not buffered: the upstream sends the next piece only after the client has received
// the previous one, so a buffer would cause a deadlock.
func TestProxyStreaming(t *testing.T) {
	s, got := newServer(t), make(chan bool)
	up := newRecorder(t, func(w http.ResponseWriter, r *http.Request) {
		for i := range 3 {
			fmt.Fprintf(w, "piece %d\n", i)
			_ = http.NewResponseController(w).Flush()
			<-got
		}
	})
	s.Start("store memory", "limitkeeper\nreverse_proxy "+up.Listener.Addr().String()+" {\nflush_interval -1\n}")
	ten := s.Tenant("default", 100)
	r, _ := http.NewRequest(http.MethodGet, s.URL("/"), nil)
	r.Header.Set("X-API-Key", ten.Secret)
	resp, err := caddytest.Client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.Header.Get("X-RateLimit-Limit") != "100" {
		t.Errorf("got header %v, want X-RateLimit-Limit", resp.Header)
	}
	out := bufio.NewReader(resp.Body)
	for i := range 3 {
		if line, err := out.ReadString('\n'); line != fmt.Sprintf("piece %d\n", i) {
			t.Errorf("got %q (%v)", line, err)
		}
		got <- true
	}
	if rest, err := io.ReadAll(out); len(rest) != 0 || err != nil {
		t.Errorf("got %q (%v) at the end", rest, err)
	}
}

// A connection can be upgraded through the gateway; the answer carries the headers.
func TestProxyUpgrade(t *testing.T) {
	s := newServer(t)
	up := newRecorder(t, func(w http.ResponseWriter, r *http.Request) {
		conn, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		defer conn.Close()
		fmt.Fprintf(rw, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
		_ = rw.Flush()
		for {
			line, err := rw.ReadString('\n')
			if err != nil {
				return
			}
			_, _ = rw.WriteString("echo " + line)
			_ = rw.Flush()
		}
	})
	s.Start("store memory", "limitkeeper {\nkey query key\n}\n"+up.proxy())
	ten := s.Tenant("default", 100)
	conn, err := net.Dial("tcp", "127.0.0.1:"+s.Port)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprintf(conn, "GET /ws?key=%s HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n", ten.Secret)
	in := bufio.NewReader(conn)
	resp, err := http.ReadResponse(in, nil)
	if err != nil || resp.StatusCode != 101 || resp.Header.Get("X-RateLimit-Remaining") != "99" {
		t.Fatalf("got %v, %v; want 101 with X-RateLimit-Remaining 99", resp, err)
	}
	for i := range 3 {
		fmt.Fprintf(conn, "message %d\n", i)
		if got, err := in.ReadString('\n'); got != fmt.Sprintf("echo message %d\n", i) {
			t.Errorf("got %q (%v)", got, err)
		}
	}
	if uri := up.last.Load().RequestURI; uri != "/ws" {
		t.Errorf("the upstream got %s, want /ws", uri)
	}
	conn.Close()
	s.WaitLog(`"logger":"http.log.access`, 1) // wait until the connection is closed
}

// Informational answers are forwarded before the final answer, without the rate limit headers.
func TestProxyEarlyHints(t *testing.T) {
	s := newServer(t)
	up := newRecorder(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Link", "</a.css>; rel=preload")
		w.WriteHeader(http.StatusEarlyHints)
		_, _ = io.WriteString(w, "done")
	})
	s.Start("store memory", "limitkeeper\n"+up.proxy())
	ten := s.Tenant("default", 100)
	var hints []textproto.MIMEHeader
	r, _ := http.NewRequestWithContext(httptrace.WithClientTrace(context.Background(), &httptrace.ClientTrace{
		Got1xxResponse: func(_ int, h textproto.MIMEHeader) error { hints = append(hints, h); return nil },
	}), http.MethodGet, s.URL("/"), nil)
	r.Header.Set("X-API-Key", ten.Secret)
	got := s.Do(r)
	if len(hints) != 1 || hints[0].Get("Link") == "" || hints[0].Get("X-RateLimit-Limit") != "" {
		t.Errorf("got hints %v, want one with Link alone", hints)
	}
	if got.Text != "done" || got.Header.Get("X-RateLimit-Limit") != "100" {
		t.Errorf("got %q with %v", got.Text, got.Header)
	}
}

// HTTP/2 works through the gateway as HTTP/1.1 does: many requests at once on one
// connection, streaming included.
func TestProxyHTTP2(t *testing.T) {
	s := newServer(t)
	up := newRecorder(t, func(w http.ResponseWriter, r *http.Request) {
		rc, in := http.NewResponseController(w), bufio.NewReader(r.Body)
		_ = rc.EnableFullDuplex()
		_ = rc.Flush()
		for {
			line, err := in.ReadString('\n')
			if err != nil {
				return
			}
			_, _ = io.WriteString(w, "echo "+line)
			_ = rc.Flush()
		}
	})
	port := freeport.Take(t)
	text := s.Config("store memory", "respond nothing") + "\nhttps://127.0.0.1:" + port +
		" {\n" + s.tls() + "\nlimitkeeper\nreverse_proxy " + up.Listener.Addr().String() + " {\nflush_interval -1\n}\n}"
	s.Must(s.Load(text))
	ten := s.Tenant("default", 100)
	h2 := http2Client()
	done := make(chan error)
	const streams = 8
	for i := range streams {
		go func() { done <- echoStream(h2, "https://127.0.0.1:"+port+"/", ten.Secret, i) }()
	}
	for range streams {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	if n := s.used(ten); n != streams {
		t.Errorf("counted %d, want %d", n, streams)
	}
}

// echoStream sends lines and reads each back before it sends the next.
func echoStream(c *http.Client, url, key string, id int) error {
	pr, pw := io.Pipe()
	r, err := http.NewRequest(http.MethodPost, url, pr)
	if err != nil {
		return err
	}
	r.Header.Set("X-API-Key", key)
	resp, err := c.Do(r)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.ProtoMajor != 2 || resp.Header.Get("X-RateLimit-Limit") != "100" {
		return fmt.Errorf("stream %d: got %s %d with %v", id, resp.Proto, resp.StatusCode, resp.Header)
	}
	out := bufio.NewReader(resp.Body)
	for i := range 5 {
		fmt.Fprintf(pw, "%d.%d\n", id, i)
		if got, err := out.ReadString('\n'); got != fmt.Sprintf("echo %d.%d\n", id, i) {
			return fmt.Errorf("stream %d: got %q (%v)", id, got, err)
		}
	}
	return pw.Close()
}

// tls returns a directive with a certificate for 127.0.0.1. Caddy's own certificates are created in the
// background, with data races that the race detector would report.
func (s *server) tls() string {
	s.T.Helper()
	unused := httptest.NewTLSServer(nil)
	defer unused.Close()
	certificate := unused.TLS.Certificates[0]
	private, err := x509.MarshalPKCS8PrivateKey(certificate.PrivateKey)
	s.Must(err)
	cert, key := filepath.Join(s.Dir, "cert.pem"), filepath.Join(s.Dir, "key.pem")
	s.Must(os.WriteFile(cert, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate.Certificate[0]}), 0o600))
	s.Must(os.WriteFile(key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}), 0o600))
	return "tls " + cert + " " + key
}

// http2Client returns an HTTP/2 client that accepts any certificate.
func http2Client() *http.Client {
	dialer := tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2", "http/1.1"}}}
	return &http.Client{Transport: &http.Transport{
		ForceAttemptHTTP2: true,
		// A reload of Caddy can reset a connection before its handshake has ended. No request was sent on it.
		DialTLSContext: func(ctx context.Context, network, address string) (conn net.Conn, err error) {
			for range 10 {
				if conn, err = dialer.DialContext(ctx, network, address); !errors.Is(err, syscall.ECONNRESET) {
					break
				}
			}
			return conn, err
		},
	}}
}
