package redistest

import (
	"errors"
	"fmt"
	"slices"
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
	replica := Start(tb, append([]string{"--replicaof", loopback, master.port}, args...)...)
	// A sentinel asks a master for its replicas at once, and then every ten seconds.
	master.AwaitReplicas(1)
	n := &Sentinel{servers: []*Server{master, replica}}
	for range sentinels {
		s := newServer(tb)
		config := []string{s.write("sentinel.conf", watching(master, password)), "--sentinel"}
		s.setOptions([]string{"--requirepass", password}) // "" requires none
		s.args = append(config, s.args...)
		s.launch()
		n.sentinels = append(n.sentinels, s)
	}
	n.Await(tb)
	return n
}

// watching returns the initial configuration of a sentinel. The sentinel appends its findings to the file.
func watching(master *Server, password string) string {
	config := fmt.Sprintf("sentinel monitor %s %s %s 2\n", masterName, loopback, master.port) +
		"sentinel down-after-milliseconds " + masterName + " 500\n" +
		"sentinel failover-timeout " + masterName + " 5000\n"
	if master.password != "" {
		config += fmt.Sprintf("sentinel auth-pass %s %s\n", masterName, master.password)
	}
	if password != "" {
		config += "sentinel sentinel-pass " + password + "\n"
	}
	return config
}

// Name returns the name of the master at the sentinels.
func (n *Sentinel) Name() string { return masterName }

// Addrs returns the addresses of the sentinels.
func (n *Sentinel) Addrs() []string { return addrs(n.sentinels) }

// Sentinels returns the sentinels.
func (n *Sentinel) Sentinels() []*Server { return n.sentinels }

// Servers returns the data servers. The first starts as master.
func (n *Sentinel) Servers() []*Server { return n.servers }

// Master returns the master, as soon as all running sentinels agree. Until AwaitFailover it may be
// dead. It fails the test after 20 seconds.
func (n *Sentinel) Master() *Server {
	tb := n.sentinels[0].tb
	tb.Helper()
	return awaitMaster(tb, n.sentinels, nil, n.masterBy)
}

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
	return awaitMaster(tb, n.sentinels, from, func(by *Server) (*Server, error) {
		master, err := n.masterBy(by)
		if err == nil {
			err = master.has("role", "master", "INFO", "replication")
		}
		return master, err
	})
}

// Await waits until all servers and sentinels answer, the sentinels know each other and agree on the
// master, and the replica is linked to it. It fails the test after 20 seconds. A former master that
// restarts becomes a replica after about ten seconds.
func (n *Sentinel) Await(tb testing.TB) {
	tb.Helper()
	await(tb, "sentinels", slices.Concat(n.servers, n.sentinels), n.isWhole)
}

// isWhole returns the first condition of Await that does not hold.
func (n *Sentinel) isWhole() error {
	master := n.Master()
	for _, s := range n.sentinels {
		if err := errors.Join(s.knows("SENTINELS", sentinels-1), s.knows("REPLICAS", len(n.servers)-1)); err != nil {
			return err
		}
	}
	for _, s := range n.servers {
		role := map[bool]string{true: "master", false: "slave"}[s == master]
		if err := errors.Join(s.has("role", role, "INFO", "replication"), s.isLinked()); err != nil {
			return err
		}
	}
	return nil
}

// knows returns an error unless a sentinel knows the given number of sentinels or replicas, and all of them live.
func (s *Server) knows(what string, want int) error {
	reply, err := s.call(brief, "SENTINEL", what, masterName)
	if err != nil {
		return err
	}
	rows, _ := reply.([]any)
	if state := text(reply); len(rows) != want || strings.Contains(state, "s_down") || strings.Contains(state, "disconnected") {
		return fmt.Errorf("%s knows these %s: %s", s.Addr(), what, state)
	}
	return nil
}
