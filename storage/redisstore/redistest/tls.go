package redistest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"
)

// StartTLS is Start for a server that also listens with TLS, at TLSAddr. It requires no client
// certificate. Its own certificate is for localhost and 127.0.0.1, valid for an hour, and in CAFile.
func StartTLS(tb testing.TB, args ...string) *Server {
	tb.Helper()
	return startTLS(tb, "", args...)
}

// startTLS is StartTLS with the certificate in a directory. It creates a certificate if that is "".
func startTLS(tb testing.TB, certificate string, args ...string) *Server {
	tb.Helper()
	return start(tb, func(s *Server) []string {
		if s.certificate = certificate; certificate == "" {
			s.certificate = s.dir
			if err := writeCertificate(s.dir); err != nil {
				tb.Fatal(err)
			}
		}
		s.tlsPort = freePort(tb)
		return s.options(append([]string{
			"--tls-port", strconv.Itoa(s.tlsPort),
			"--tls-ca-cert-file", s.CAFile(),
			"--tls-cert-file", certPath(s.certificate),
			"--tls-key-file", keyPath(s.certificate),
			"--tls-auth-clients", "no",
		}, args...))
	})
}

// TLSAddr returns host and port of the TLS listener. It fails the test without TLS.
func (s *Server) TLSAddr() string {
	s.tb.Helper()
	if s.tlsPort == 0 {
		s.tb.Fatal("a server without TLS has no TLSAddr")
	}
	return address(s.tlsPort)
}

// CAFile returns the path of the server's certificate in PEM, for clients to trust. It is removed after the test.
func (s *Server) CAFile() string { return certPath(s.certificate) }

func certPath(dir string) string { return filepath.Join(dir, "cert.pem") }

func keyPath(dir string) string { return filepath.Join(dir, "key.pem") }

// writeCertificate creates a certificate that signs itself, and so is its own authority.
func writeCertificate(dir string) error {
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
		return err
	}
	der, err := x509.CreateCertificate(rand.Reader, c, c, key.Public(), key)
	if err != nil {
		return err
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	if err := writePEM(certPath(dir), "CERTIFICATE", der); err != nil {
		return err
	}
	return writePEM(keyPath(dir), "PRIVATE KEY", private)
}

func writePEM(path, kind string, der []byte) error {
	return os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600)
}
