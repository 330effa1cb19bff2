package redistest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"testing"
	"time"

	"github.com/limitkeeper/limitkeeper/internal/freeport"
)

// StartTLS is Start for a server that also listens with TLS, at TLSAddr. It requires no client
// certificate. Its own certificate is for localhost and 127.0.0.1, valid for an hour, and in CAFile.
func StartTLS(tb testing.TB, args ...string) *Server {
	tb.Helper()
	s := newServer(tb)
	s.setOptions(append(s.listenTLS(newCertificate(tb)), args...))
	s.launch()
	return s
}

// listenTLS returns the options of a server that also listens with TLS. pem is the text of its certificate and key.
func (s *Server) listenTLS(pem string) []string {
	s.tlsPort, s.caFile = freeport.Take(s.tb), s.write("cert.pem", pem)
	return []string{
		"--tls-port", s.tlsPort,
		"--tls-ca-cert-file", s.caFile,
		"--tls-cert-file", s.caFile,
		"--tls-key-file", s.caFile,
		"--tls-auth-clients", "no",
	}
}

// TLSAddr returns host and port of the TLS listener. It fails the test without TLS.
func (s *Server) TLSAddr() string {
	s.tb.Helper()
	if s.tlsPort == "" {
		s.tb.Fatal("a server without TLS has no TLSAddr")
	}
	return address(s.tlsPort)
}

// CAFile returns the path of the server's certificate in PEM, for clients to trust. It is removed after the test.
func (s *Server) CAFile() string { return s.caFile }

// newCertificate returns a certificate that signs itself, and so is its own authority, and its private key.
func newCertificate(tb testing.TB) string {
	tb.Helper()
	c := &x509.Certificate{
		SerialNumber: big.NewInt(1),
		Subject:      pkix.Name{CommonName: "localhost"},
		DNSNames:     []string{"localhost"}, IPAddresses: []net.IP{net.ParseIP(loopback)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		KeyUsage:    x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		IsCA:        true, BasicConstraintsValid: true,
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		tb.Fatal(err)
	}
	der, err1 := x509.CreateCertificate(rand.Reader, c, c, key.Public(), key)
	private, err2 := x509.MarshalPKCS8PrivateKey(key)
	if err := errors.Join(err1, err2); err != nil {
		tb.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})) +
		string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}))
}
