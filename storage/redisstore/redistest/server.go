// Package redistest runs real redis-server processes for tests and benchmarks: alone,
// with TLS, as a cluster, and with sentinels. They listen on loopback only, live in
// temporary directories and end with the test, also when its process is killed.
//
// The environment variable REDIS_SERVER names another program to run, such as
// valkey-server. Nothing here skips a test: what does not come about within 20 seconds
// fails it, with the last lines that the servers have logged. Methods that can fail a
// test belong into its own goroutine, as [testing.TB.FailNow] does.
package redistest

import (
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"testing"
)

// Server is one redis-server. It keeps its ports, its directory and its options for as
// long as the test runs, also while no process runs.
type Server struct {
	tb       testing.TB
	binary   string
	dir      string
	port     int
	tlsPort  int    // 0 without TLS
	password string // of the default user, from the option --requirepass
	args     []string

	certificates string // the directory of those, with TLS

	mu      sync.Mutex
	process *process // the newest, which may have ended
}

// Start runs a server until the end of the test and returns when it answers. The
// arguments are options of redis-server, one word each, such as "--maxmemory", "1mb";
// they override the defaults: nothing is saved, replicas are synced without delay. The
// ports are not to be overridden. A missing program fails the test.
func Start(tb testing.TB, args ...string) *Server {
	tb.Helper()
	return start(tb, func(s *Server) []string { return s.options(args) })
}

// start runs a server with the arguments that it gets once it has a directory and a port.
func start(tb testing.TB, arguments func(*Server) []string) *Server {
	tb.Helper()
	const attempts = 5 // another process can take a port between our look and its use
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

// tempDir makes a directory that is gone after the test. The path of a unix socket has
// at most 107 bytes, 103 on some systems: testing.TB.TempDir is too long for that.
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

// options returns the defaults, with others after them that override them.
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

// Dir returns the server's directory, where it writes its files. It is gone after the
// test.
func (s *Server) Dir() string { return s.dir }

func (s *Server) logPath() string { return filepath.Join(s.dir, "log") }

func address(port int) string { return net.JoinHostPort(loopback, strconv.Itoa(port)) }
