package redisstore_test

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"log/slog"
	"math/big"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/secrets"
	"github.com/limitkeeper/limitkeeper/storage/redisstore"
	"github.com/limitkeeper/limitkeeper/storage/redisstore/redistest"
)

// logBuffer is a log that is safe to read during writes.
type logBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// accessTest is a store whose servers change their credentials.
type accessTest struct {
	*world
	o       redisstore.Options
	log     *logBuffer
	servers []*redistest.Server
}

func newAccessTest(t *testing.T, o redisstore.Options, servers ...*redistest.Server) *accessTest {
	t.Helper()
	r := &accessTest{o: o, log: &logBuffer{}, servers: servers}
	r.o.Timeout = 2 * time.Second
	o = r.o
	o.Logger = slog.New(slog.NewTextHandler(r.log, nil))
	r.world = newWorld(t, openFaulty(t, o), 1)
	r.awaitTrust(t)
	r.consume(t)
	return r
}

// awaitTrust waits until the watch has checked every master.
func (r *accessTest) awaitTrust(t *testing.T) {
	t.Helper()
	told := &watcher{}
	r.s.Watch(told)
	told.awaitTrust(t)
}

func (r *accessTest) try(t *testing.T) error {
	_, err := r.s.Consume(t.Context(), consumption(&r.keys[0], "", true))
	return err
}

// consume counts a request. A denial fails the test.
func (r *accessTest) consume(t *testing.T) {
	t.Helper()
	if err := r.try(t); err != nil {
		t.Fatalf("Consume: %v", err)
	}
}

// set changes the store's credentials.
func (r *accessTest) set(a redisstore.Access) {
	r.s.SetAccess(a)
	r.o.Username, r.o.Password, r.o.TLS = a.Username, a.Password, a.TLS
	r.o.SentinelUsername, r.o.SentinelPassword = a.SentinelUsername, a.SentinelPassword
}

// refused cuts all connections. It fails the test unless the store stays unavailable, since its
// credentials are wrong.
func (r *accessTest) refused(t *testing.T, why string) {
	t.Helper()
	for _, s := range r.servers {
		s.CutConnections()
	}
	time.Sleep(time.Second) // keepAlive probes every connection in that time
	if err := r.try(t); !errors.Is(err, core.ErrUnavailable) {
		t.Errorf("Consume: %v, want ErrUnavailable", err)
	}
	if _, err := redisstore.Open(t.Context(), r.o); err == nil || !strings.Contains(err.Error(), why) {
		t.Errorf("Open: %v, want %q", err, why)
	}
}

// accepted waits until the store works with new connections of every kind.
func (r *accessTest) accepted(t *testing.T) {
	t.Helper()
	until(t, "an allowed request", func() bool { return r.try(t) == nil && r.answers(t) })
	r.awaitTrust(t)
	exerciseStore(t, r.s)
}

// answers reports whether all slots are readable, which needs a connection to each master.
func (r *accessTest) answers(t *testing.T) bool {
	for i := range 64 {
		if _, err := r.s.KeyByDigest(t.Context(), secrets.DigestOf(strconv.Itoa(i))); errors.Is(err, core.ErrUnavailable) {
			return false
		}
	}
	return true
}

// After SetAccess every kind of new connection uses the new user and password, for servers and sentinels.
// No log shows the passwords. Until then, errors say that the credentials are wrong. A failure means that
// a password change needs a restart.
func TestSetAccess(t *testing.T) {
	t.Parallel()
	wait := redisstore.Wait{Replicas: 1, Timeout: 10 * time.Second}
	t.Run("single", func(t *testing.T) {
		t.Parallel()
		s := redistest.Start(t)
		changesAccess(t, redisstore.Options{Addresses: []string{s.Addr()}}, []*redistest.Server{s}, nil)
	})
	t.Run("cluster", func(t *testing.T) {
		t.Parallel()
		c := redistest.StartCluster(t)
		changesAccess(t, redisstore.Options{Addresses: c.Addrs(), Wait: wait}, c.Nodes(), nil)
	})
	t.Run("sentinel", func(t *testing.T) {
		t.Parallel()
		n := redistest.StartSentinel(t)
		changesAccess(t, redisstore.Options{Addresses: n.Addrs(), Sentinel: n.Name(), Wait: wait}, n.Servers(), n.Sentinels())
	})
}

// changesAccess changes the credentials on servers and sentinels while a store is open.
func changesAccess(t *testing.T, o redisstore.Options, servers, sentinels []*redistest.Server) {
	t.Helper()
	o.Username, o.Password, o.SentinelUsername, o.SentinelPassword = "limitkeeper", "geheim-1", "asks", "geheim-2"
	for _, s := range servers {
		s.Do(t, "ACL", "SETUSER", "limitkeeper", "on", ">geheim-1", "~*", "&*", "+@all")
	}
	for _, s := range sentinels {
		s.Do(t, "ACL", "SETUSER", "asks", "on", ">geheim-2", "&*", "+@all")
	}
	r := newAccessTest(t, o, servers...)
	for _, s := range servers {
		s.Do(t, "ACL", "SETUSER", "limitkeeper", "off")
		s.Do(t, "ACL", "SETUSER", "another", "on", ">geheim-3", "~*", "&*", "+@all")
	}
	r.consume(t)
	r.refused(t, "WRONGPASS")
	until(t, "the reason in the log", func() bool { return strings.Contains(r.log.String(), "WRONGPASS") })
	for _, s := range sentinels {
		s.Do(t, "ACL", "SETUSER", "asks", "resetpass", ">geheim-4")
		s.CutConnections()
	}
	r.set(redisstore.Access{Username: "another", Password: "geheim-3", SentinelUsername: "asks", SentinelPassword: "geheim-4"})
	r.accepted(t)
	if len(sentinels) > 0 {
		until(t, "a connection to a sentinel", func() bool { return passwordRequired(t, sentinels) })
	}
	if log := r.log.String(); strings.Contains(log, "geheim") {
		t.Errorf("a password is in the log:\n%s", log)
	}
}

// passwordRequired reports whether a sentinel requires a password.
func passwordRequired(t *testing.T, sentinels []*redistest.Server) bool {
	t.Helper()
	return slices.ContainsFunc(sentinels, func(s *redistest.Server) bool {
		return strings.Contains(s.Do(t, "CLIENT", "LIST"), "user=asks")
	})
}

// A wrong password in SetAccess leaves open connections alone, and is logged at once, before an outage
// needs new connections.
func TestSetWrongAccess(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, "--requirepass", "geheim")
	r := newAccessTest(t, redisstore.Options{Addresses: []string{server.Addr()}, Password: "geheim"}, server)
	for _, wrong := range []redisstore.Access{{Password: "ungeheim"}, {}, {Username: "ungeheim", Password: "geheim"}} {
		before := len(r.log.String())
		r.set(wrong)
		until(t, "a line of the log", func() bool {
			line := r.log.String()[before:]
			return strings.Contains(line, "no new connection") && (strings.Contains(line, "WRONGPASS") || strings.Contains(line, "NOAUTH"))
		})
		r.consume(t)
	}
	r.refused(t, "WRONGPASS")
	before := len(r.log.String())
	r.set(redisstore.Access{Password: "geheim"})
	r.accepted(t)
	if err := r.s.Close(); err != nil { // waits for the attempt to connect
		t.Errorf("Close: %v", err)
	}
	r.s.SetAccess(redisstore.Access{}) // no effect after Close
	if log := r.log.String(); strings.Contains(log, "geheim") || strings.Contains(log[before:], "no new connection") {
		t.Errorf("the log shows a password, or a fault of the right one:\n%s", log)
	}
}

// After SetCertificates every new connection uses the new authority and the new client certificate.
func TestSetCertificates(t *testing.T) {
	t.Parallel()
	server, other := redistest.StartTLS(t), redistest.StartTLS(t)
	access := redisstore.Access{TLS: &tls.Config{RootCAs: authorities(t, server.CAFile())}}
	r := newAccessTest(t, redisstore.Options{Addresses: []string{server.TLSAddr()}, TLS: access.TLS}, server)

	server.Do(t, "CONFIG", "SET", "tls-cert-file", other.CAFile(), "tls-key-file", other.CAFile())
	r.consume(t)
	r.refused(t, "certificate signed by unknown authority")
	access.TLS = &tls.Config{RootCAs: authorities(t, other.CAFile())}
	r.set(access)
	r.accepted(t)

	shown, file := clientCertificate(t)
	server.Do(t, "CONFIG", "SET", "tls-ca-cert-file", file, "tls-auth-clients", "yes")
	r.consume(t)
	r.refused(t, "certificate") // "certificate" from the server, unless it hung up first
	access.TLS = &tls.Config{RootCAs: access.TLS.RootCAs, Certificates: []tls.Certificate{shown}}
	r.set(access)
	r.accepted(t)
}

// authorities returns the certificates of a PEM file.
func authorities(t *testing.T, file string) *x509.CertPool {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(text)
	return pool
}

// clientCertificate creates a self-signed certificate, and returns it with its file.
func clientCertificate(t *testing.T) (c tls.Certificate, file string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	file = filepath.Join(t.TempDir(), "client.pem")
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, file
}
