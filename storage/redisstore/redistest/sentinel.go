package redistest

import (
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

// Sentinel is a master with a replica and three sentinels.
type Sentinel struct {
	servers   []*Server
	sentinels []*Server
}

// StartSentinel runs a master, its replica and three sentinels until the end of the test. It returns when
// they know each other, see Await. Two sentinels without answer for half a second declare the master dead.
// args are options for master and replica, as for Start. Sentinels that do not start fail the test.
func StartSentinel(tb testing.TB, args ...string) *Sentinel {
	tb.Helper()
	return StartSentinelSecret(tb, "", args...)
}

// StartSentinelSecret is StartSentinel. The sentinels require the password unless it is "".
func StartSentinelSecret(tb testing.TB, password string, args ...string) *Sentinel {
	tb.Helper()
	master := Start(tb, args...)
	replica := Start(tb, append([]string{"--replicaof", loopback, strconv.Itoa(master.port)}, args...)...)
	// A sentinel asks a master for its replicas at once, and then every ten seconds.
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

// watching returns the initial configuration of a sentinel. The sentinel appends its findings to the file.
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

// Name returns the name of the master at the sentinels.
func (n *Sentinel) Name() string { return masterName }

// Addrs returns the addresses of the sentinels.
func (n *Sentinel) Addrs() []string { return addrs(n.sentinels) }

// Sentinels returns the sentinels.
func (n *Sentinel) Sentinels() []*Server { return n.sentinels }

// Servers returns the data servers. The first starts as master.
func (n *Sentinel) Servers() []*Server { return n.servers }

// Master returns the master according to the first sentinel that answers. Until AwaitFailover it may be
// dead. It fails the test if no sentinel answers.
func (n *Sentinel) Master() *Server { return firstNamed(n.sentinels, n.masterBy) }

// masterBy returns the master according to one sentinel.
func (n *Sentinel) masterBy(s *Server) (*Server, error) {
	reply, err := s.call(brief, "SENTINEL", "GET-MASTER-ADDR-BY-NAME", masterName)
	if err != nil {
		return nil, err
	}
	addr := strings.ReplaceAll(text(reply), "\n", ":")
	i := slices.IndexFunc(n.servers, func(s *Server) bool { return s.Addr() == addr })
	if i < 0 {
		return nil, fmt.Errorf("SENTINEL names the master %q", addr)
	}
	return n.servers[i], nil
}

// AwaitFailover waits until all running sentinels agree that another server than from is the master, and
// that server confirms it. It returns the new master. It fails the test after 20 seconds.
func (n *Sentinel) AwaitFailover(tb testing.TB, from *Server) *Server {
	tb.Helper()
	return awaitOther(tb, from, n.all(), func() (*Server, error) {
		master, err := agreed(n.sentinels, n.masterBy)
		if err == nil {
			err = master.isMaster()
		}
		return master, err
	})
}

// Await waits until all servers and sentinels answer, the sentinels know each other and agree on the
// master, and the replica is linked to it. It fails the test after 20 seconds. A former master that
// restarts becomes a replica after about ten seconds.
func (n *Sentinel) Await(tb testing.TB) {
	tb.Helper()
	await(tb, "sentinels", n.all(), n.isWhole)
}

// isWhole returns the first condition of Await that does not hold.
func (n *Sentinel) isWhole() error {
	for _, s := range n.sentinels {
		if err := s.knows(sentinels-1, len(n.servers)-1); err != nil {
			return err
		}
	}
	master, err := agreed(n.sentinels, n.masterBy)
	if err != nil {
		return err
	}
	for _, s := range n.servers {
		if s != master && s.isMaster() == nil {
			return fmt.Errorf("%s is a master too", s.Addr())
		}
		if err := s.isLinked(); err != nil {
			return err
		}
	}
	return master.isMaster()
}

// knows returns an error unless a sentinel knows the given numbers of live sentinels and replicas.
func (s *Server) knows(others, replicas int) error {
	for command, want := range map[string]int{"SENTINELS": others, "REPLICAS": replicas} {
		reply, err := s.call(brief, "SENTINEL", command, masterName)
		if err != nil {
			return err
		}
		rows, _ := reply.([]any)
		live := 0
		for _, row := range rows {
			if state := text(row); !strings.Contains(state, "s_down") && !strings.Contains(state, "disconnected") {
				live++
			}
		}
		if live != want {
			return fmt.Errorf("%s knows %d of %d %s", s.Addr(), live, want, strings.ToLower(command))
		}
	}
	return nil
}

func (n *Sentinel) all() []*Server { return slices.Concat(n.servers, n.sentinels) }
