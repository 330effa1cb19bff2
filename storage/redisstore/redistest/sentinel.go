package redistest

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const (
	sentinels  = 3
	masterName = "redistest"
)

// Sentinel is a master with a replica, and three sentinels that watch them.
type Sentinel struct {
	servers   []*Server
	sentinels []*Server
}

// StartSentinel runs a master, its replica and three sentinels until the end of the test
// and returns when they know each other, as Await says. Two sentinels who have no answer
// for half a second take the master for dead. The arguments are options for master and
// replica, as of Start. What does not come about fails the test.
func StartSentinel(tb testing.TB, args ...string) *Sentinel {
	tb.Helper()
	return StartSentinelSecret(tb, "", args...)
}

// StartSentinelSecret is StartSentinel with sentinels who want a password, unless it is "".
func StartSentinelSecret(tb testing.TB, password string, args ...string) *Sentinel {
	tb.Helper()
	master := Start(tb, args...)
	replica := Start(tb, append([]string{"--replicaof", loopback, strconv.Itoa(master.port)}, args...)...)
	// A sentinel asks a master for its replicas at once and then every ten seconds.
	master.AwaitReplicas(1)
	n := &Sentinel{servers: []*Server{master, replica}}
	for range sentinels {
		n.sentinels = append(n.sentinels, start(tb, func(s *Server) []string {
			s.password = password
			path := filepath.Join(s.dir, "sentinel.conf")
			if err := os.WriteFile(path, []byte(s.watching(master)), 0o600); err != nil {
				tb.Fatal(err)
			}
			return []string{path, "--sentinel"}
		}))
	}
	n.Await(tb)
	return n
}

// watching returns the configuration of a sentinel, who writes into it what he learns.
func (s *Server) watching(master *Server) string {
	lines := []string{
		fmt.Sprintf("port %d", s.port),
		"bind " + loopback,
		"unixsocket " + s.Socket(),
		"dir " + s.dir,
		fmt.Sprintf("sentinel monitor %s %s %d 2", masterName, loopback, master.port),
		"sentinel down-after-milliseconds " + masterName + " 500",
		"sentinel failover-timeout " + masterName + " 5000",
	}
	if p := master.password; p != "" {
		lines = append(lines, fmt.Sprintf("sentinel auth-pass %s %s", masterName, p))
	}
	if s.password != "" {
		lines = append(lines, "requirepass "+s.password, "sentinel sentinel-pass "+s.password)
	}
	return strings.Join(lines, "\n") + "\n"
}

// Name returns the name under which the sentinels know the master.
func (n *Sentinel) Name() string { return masterName }

// Addrs returns the addresses of the sentinels.
func (n *Sentinel) Addrs() []string { return addrs(n.sentinels) }

// Sentinels returns the sentinels.
func (n *Sentinel) Sentinels() []*Server { return n.sentinels }

// Servers returns the servers with the data: the first is the master at the beginning.
func (n *Sentinel) Servers() []*Server { return n.servers }

// Master returns the master by what the first sentinel says that answers. It may be dead,
// until AwaitFailover. No answer fails the test of the sentinels.
func (n *Sentinel) Master() *Server {
	tb := n.servers[0].tb
	tb.Helper()
	var problems error
	for _, s := range n.sentinels {
		if !s.canAnswer() {
			continue
		}
		master, err := n.masterBy(s)
		if err == nil {
			return master
		}
		problems = errors.Join(problems, fmt.Errorf("%s: %w", s.Addr(), err))
	}
	tb.Fatalf("find the master: %v\n%s", problems, lastLines(n.sentinels...))
	return nil
}

// masterBy returns the master by what one sentinel says.
func (n *Sentinel) masterBy(s *Server) (*Server, error) {
	reply, err := s.call(brief, "SENTINEL", "GET-MASTER-ADDR-BY-NAME", masterName)
	if err != nil {
		return nil, err
	}
	addr := strings.ReplaceAll(text(reply), "\n", ":")
	i := slices.IndexFunc(n.servers, func(s *Server) bool { return s.Addr() == addr })
	if i < 0 {
		return nil, fmt.Errorf("the master is said to be %q", addr)
	}
	return n.servers[i], nil
}

// AwaitFailover waits until all sentinels that run and are not paused agree that another
// than the given server is the master, and it says so itself; it returns the new one. That
// they do not within 20 seconds fails the test.
func (n *Sentinel) AwaitFailover(tb testing.TB, from *Server) *Server {
	tb.Helper()
	var master *Server
	await(tb, "failover of "+from.Addr(), n.all(), func() (err error) {
		if master, err = n.agreed(); err != nil {
			return err
		}
		if master == from {
			return errors.New("it is still the master")
		}
		return master.isMaster()
	})
	return master
}

// Await waits until all servers and sentinels answer, the sentinels know each other and
// agree about the master, and the replica has a link to it. That it does not come about
// within 20 seconds fails the test. A master who comes back after a failover is made a
// replica in some ten seconds.
func (n *Sentinel) Await(tb testing.TB) {
	tb.Helper()
	await(tb, "sentinels", n.all(), n.isWhole)
}

func (n *Sentinel) all() []*Server { return slices.Concat(n.servers, n.sentinels) }
