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
// certificate. Its own certificate is for localhost and 127.0.0.1, valid for an hour, and signed by the
// authority in CAFile.
func StartTLS(tb testing.TB, args ...string) *Server {
	tb.Helper()
	return startTLS(tb, "", args...)
}

// startTLS is StartTLS with the certificates in a directory. It creates certificates if that is "".
func startTLS(tb testing.TB, certificates string, args ...string) *Server {
	tb.Helper()
	return start(tb, func(s *Server) []string {
		if s.certificates = certificates; certificates == "" {
			s.certificates = s.dir
			if err := writeCertificates(s.dir); err != nil {
				tb.Fatal(err)
			}
		}
		s.tlsPort = freePort(tb)
		return s.options(append([]string{
			"--tls-port", strconv.Itoa(s.tlsPort),
			"--tls-ca-cert-file", s.CAFile(),
			"--tls-cert-file", certPath(s.certificates),
			"--tls-key-file", keyPath(s.certificates),
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

// CAFile returns the path of the authority's certificate in PEM, for clients to trust. It is removed after
// the test.
func (s *Server) CAFile() string { return caPath(s.certificates) }

func caPath(dir string) string { return filepath.Join(dir, "ca.pem") }

func certPath(dir string) string { return filepath.Join(dir, "cert.pem") }

func keyPath(dir string) string { return filepath.Join(dir, "key.pem") }

// writeCertificates creates an authority and a server certificate.
func writeCertificates(dir string) error {
	ca := certificate(1, "redistest authority")
	ca.IsCA, ca.BasicConstraintsValid, ca.KeyUsage = true, true, x509.KeyUsageCertSign
	caKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	leaf := certificate(2, "localhost")
	leaf.DNSNames, leaf.IPAddresses = []string{"localhost"}, []net.IP{net.ParseIP(loopback)}
	leaf.KeyUsage = x509.KeyUsageDigitalSignature
	leaf.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	leafKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	if err := writeCertificate(caPath(dir), ca, ca, caKey, caKey); err != nil {
		return err
	}
	if err := writeCertificate(certPath(dir), leaf, ca, leafKey, caKey); err != nil {
		return err
	}
	der, err := x509.MarshalPKCS8PrivateKey(leafKey)
	if err != nil {
		return err
	}
	return writePEM(keyPath(dir), "PRIVATE KEY", der)
}

// certificate returns a template for a certificate.
func certificate(serial int64, name string) *x509.Certificate {
	return &x509.Certificate{
		SerialNumber: big.NewInt(serial),
		Subject:      pkix.Name{CommonName: name},
		NotBefore:    time.Now().Add(-time.Hour),
		NotAfter:     time.Now().Add(time.Hour),
	}
}

// writeCertificate signs a certificate with the key of its parent and writes it.
func writeCertificate(path string, c, parent *x509.Certificate, key, parentKey *ecdsa.PrivateKey) error {
	der, err := x509.CreateCertificate(rand.Reader, c, parent, key.Public(), parentKey)
	if err != nil {
		return err
	}
	return writePEM(path, "CERTIFICATE", der)
}

func writePEM(path, kind string, der []byte) error {
	return os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600)
}
