// Package redistest runs real redis-server processes for tests and benchmarks: alone, with TLS, as a
// cluster, and with sentinels. They listen on loopback only, keep their files in temporary directories,
// and end with the test, even if its process is killed.
//
// The environment variable REDIS_SERVER names another program, such as valkey-server. No function skips a
// test: a failure, or a wait of more than 20 seconds, fails the test with the last log lines of the
// servers. Call methods that can fail a test from its own goroutine, as [testing.TB.FailNow] requires.
package redistest

import (
	"cmp"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/limitkeeper/limitkeeper/internal/freeport"
)

const loopback = "127.0.0.1"

// Server is a redis-server. It keeps its ports, directory and options during the whole test, also while no
// process runs.
type Server struct {
	tb       testing.TB
	binary   string
	dir      string
	port     string
	tlsPort  string // "" without TLS
	password string // of the default user, from --requirepass
	args     []string

	caFile string // see CAFile

	process atomic.Pointer[process] // the newest; may have ended
	paused  atomic.Bool
}

// Start runs a server until the end of the test. It returns when the server answers. args are options of
// redis-server, one word each, such as "--maxmemory", "1mb". They override the defaults: no persistence,
// and immediate synchronization of replicas. They must not set ports. A missing program fails the test.
func Start(tb testing.TB, args ...string) *Server {
	tb.Helper()
	s := newServer(tb)
	s.setOptions(args)
	s.launch()
	return s
}

// newServer returns a server with a port and a directory, which runs no process yet.
func newServer(tb testing.TB) *Server {
	tb.Helper()
	binary, err := exec.LookPath(cmp.Or(os.Getenv("REDIS_SERVER"), "redis-server"))
	if err != nil {
		tb.Fatalf("these tests need a redis-server: apt-get install redis-server, "+
			"or name another program in REDIS_SERVER: %v", err)
	}
	s := &Server{tb: tb, binary: binary, dir: tempDir(tb), port: freeport.Take(tb)}
	tb.Cleanup(func() {
		if s.process.Load() != nil {
			s.Kill()
		}
	})
	return s
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

// setOptions sets the defaults followed by more, which override them.
func (s *Server) setOptions(more []string) {
	if i := slices.Index(more, "--requirepass"); i >= 0 && i+1 < len(more) {
		s.password = more[i+1]
	}
	s.args = append([]string{
		"--port", s.port,
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

// write creates a file in the directory of the server, and returns its path.
func (s *Server) write(name, text string) string {
	s.tb.Helper()
	path := filepath.Join(s.dir, name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		s.tb.Fatal(err)
	}
	return path
}

func (s *Server) logPath() string { return filepath.Join(s.dir, "log") }

func address(port string) string { return net.JoinHostPort(loopback, port) }

func addrs(servers []*Server) (list []string) {
	for _, s := range servers {
		list = append(list, s.Addr())
	}
	return list
}
