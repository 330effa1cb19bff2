// Package redistest runs real redis-server processes for tests and benchmarks: alone, with TLS, as a
// cluster, and with sentinels. They listen on loopback only, keep their files in temporary directories,
// and end with the test, even if its process is killed.
//
// The environment variable REDIS_SERVER names another program, such as valkey-server. No function skips a
// test: a failure, or a wait of more than 20 seconds, fails the test with the last log lines of the
// servers. Call methods that can fail a test from its own goroutine, as [testing.TB.FailNow] requires.
package redistest

import (
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"
)

// Server is a redis-server. It keeps its ports, directory and options during the whole test, also while no
// process runs.
type Server struct {
	tb       testing.TB
	binary   string
	dir      string
	port     int
	tlsPort  int    // 0 without TLS
	password string // of the default user, from --requirepass
	args     []string

	certificate string // directory of the TLS certificate

	process atomic.Pointer[process] // the newest; may have ended
}

// Start runs a server until the end of the test. It returns when the server answers. args are options of
// redis-server, one word each, such as "--maxmemory", "1mb". They override the defaults: no persistence,
// and immediate synchronization of replicas. They must not set ports. A missing program fails the test.
func Start(tb testing.TB, args ...string) *Server {
	tb.Helper()
	return start(tb, func(s *Server) []string { return s.options(args) })
}

// start runs a server. arguments returns its options once it has a directory and a port.
func start(tb testing.TB, arguments func(*Server) []string) *Server {
	tb.Helper()
	const attempts = 5 // another process may take the port first
	binary := lookUp(tb)
	for n := 1; ; n++ {
		s := &Server{tb: tb, binary: binary, dir: tempDir(tb), port: freePort(tb)}
		s.args = arguments(s)
		tb.Cleanup(s.end)
		err := s.launch()
		if err == nil {
			return s
		}
		if n == attempts || !errors.Is(err, errPortTaken) {
			tb.Fatalf("start %s: %v\n%s", binary, err, lastLines(s))
		}
	}
}

// lookUp returns the path of the program.
func lookUp(tb testing.TB) string {
	tb.Helper()
	name := os.Getenv("REDIS_SERVER")
	if name == "" {
		name = "redis-server"
	}
	path, err := exec.LookPath(name)
	if err != nil {
		tb.Fatalf("these tests need a redis-server: apt-get install redis-server, "+
			"or name another program in REDIS_SERVER: %v", err)
	}
	return path
}

// tempDir creates a directory that is removed after the test. The path of a unix socket has at most 107
// bytes, 103 on some systems, and testing.TB.TempDir is longer.
func tempDir(tb testing.TB) string {
	tb.Helper()
	parent := ""
	if len(os.TempDir()) > 70 {
		parent = "/tmp"
	}
	dir, err := os.MkdirTemp(parent, "redis")
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// options returns the defaults followed by more, which override them.
func (s *Server) options(more []string) []string {
	if i := slices.Index(more, "--requirepass"); i >= 0 && i+1 < len(more) {
		s.password = more[i+1]
	}
	return append([]string{
		"--port", strconv.Itoa(s.port),
		"--bind", loopback,
		"--unixsocket", s.Socket(),
		"--dir", s.dir,
		"--save", "",
		"--appendonly", "no",
		"--repl-diskless-sync-delay", "0",
	}, more...)
}

// Addr returns host and port of the server, such as 127.0.0.1:12345.
func (s *Server) Addr() string { return address(s.port) }

// Socket returns the path of the server's unix socket, short enough for every system.
func (s *Server) Socket() string { return filepath.Join(s.dir, "socket") }

// Dir returns the directory of the server's files. It is removed after the test.
func (s *Server) Dir() string { return s.dir }

func (s *Server) logPath() string { return filepath.Join(s.dir, "log") }

func address(port int) string { return net.JoinHostPort(loopback, strconv.Itoa(port)) }
