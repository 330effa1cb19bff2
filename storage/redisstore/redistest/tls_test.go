package redistest

import (
	"crypto/tls"
	"crypto/x509"
	"os"
	"testing"
)

// A client that trusts the authority speaks TLS with the server.
func TestTLS(t *testing.T) {
	t.Parallel()
	s := StartTLS(t)
	pem, err := os.ReadFile(s.CAFile())
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		t.Fatalf("no certificate in %q", pem)
	}
	for _, name := range []string{"", "localhost"} {
		conn, err := tls.Dial("tcp", s.TLSAddr(), &tls.Config{RootCAs: pool, ServerName: name})
		if err != nil {
			t.Fatal(err)
		}
		if got := send(t, conn, "PING\r\n"); got != "+PONG\r\n" {
			t.Errorf("PING = %q", got)
		}
		_ = conn.Close()
	}
	if got := s.Do(t, "PING"); got != "PONG" {
		t.Errorf("PING without TLS = %q", got)
	}
	if conn, err := tls.Dial("tcp", s.TLSAddr(), &tls.Config{RootCAs: x509.NewCertPool()}); err == nil {
		_ = conn.Close()
		t.Error("a client without trusted authorities connected")
	}
}
