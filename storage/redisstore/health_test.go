package redisstore_test

import (
	"errors"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/redisstore"
	"github.com/limitkeeper/limitkeeper/storage/redisstore/redistest"
)

// Anyone can ask for the health without limit: 10,000 calls send at most 1,000 commands to Redis. While Redis is away the health is an
// error, and afterwards it is not.
func TestHealthIsCheap(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, "--appendonly", "yes", "--appendfsync", "always")
	s := openFaulty(t, faulty(server.Addr()))
	before := commands(t, server)
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			for range 625 {
				if err := s.Health(t.Context()); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if n := commands(t, server) - before; n > 1000 {
		t.Errorf("10,000 calls sent %d commands to Redis, want at most 1000", n)
	}
	server.Stop()
	until(t, "an error", func() bool { return s.Health(t.Context()) != nil })
	server.Restart()
	until(t, "the health", func() bool { return s.Health(t.Context()) == nil })
}

// commands returns how many commands a server has processed.
func commands(t *testing.T, server *redistest.Server) int {
	t.Helper()
	for line := range strings.Lines(server.Do(t, "INFO", "stats")) {
		if n, ok := strings.CutPrefix(strings.TrimSpace(line), "total_commands_processed:"); ok {
			v, err := strconv.Atoi(n)
			if err != nil {
				t.Fatal(err)
			}
			return v
		}
	}
	t.Fatal("INFO has no total_commands_processed")
	return 0
}

// A node is ready while a decision would be counted, and not while Redis only answers reads. It recovers by itself.
func TestHealthWrites(t *testing.T) {
	t.Parallel()
	master := redistest.Start(t)
	host, port, err := net.SplitHostPort(master.Addr())
	if err != nil {
		t.Fatal(err)
	}
	s := openFaulty(t, faulty(master.Addr()))
	config := func(name, value string) func() { return func() { master.Do(t, "CONFIG", "SET", name, value) } }
	for _, c := range []struct {
		name      string
		fail, end func()
	}{
		{"memory full", func() {
			config("maxmemory-policy", "noeviction")()
			config("maxmemory", "1")()
		}, config("maxmemory", "0")},
		{"min-replicas-to-write", config("min-replicas-to-write", "1"), config("min-replicas-to-write", "0")},
		{"wait_replicas", func() { s.SetWait(redisstore.Wait{Replicas: 1, Timeout: 50 * time.Millisecond}) }, func() { s.SetWait(redisstore.Wait{}) }},
		{"replica", func() {
			other := redistest.Start(t)
			h, p, _ := net.SplitHostPort(other.Addr())
			other.Do(t, "REPLICAOF", host, port) // the data stays the same in both directions
			master.AwaitReplicas(1)
			other.Do(t, "REPLICAOF", "NO", "ONE")
			master.Do(t, "REPLICAOF", h, p)
		}, func() { master.Do(t, "REPLICAOF", "NO", "ONE") }},
	} {
		c.fail()
		until(t, c.name+": an error", func() bool { return errors.Is(s.Health(t.Context()), core.ErrUnavailable) })
		c.end()
		until(t, c.name+": the health", func() bool { return s.Health(t.Context()) == nil })
	}
}

// A master of a Cluster that only answers reads makes a node not ready, whichever slots it has. The error and the log name the master.
// A failure means that requests to its slots get 503 while a load balancer sends them.
func TestHealthWritesOnCluster(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t)
	o, log := logging(c.Addrs()...)
	s := openFaulty(t, o)
	for _, slot := range []int{0, 8191, 16383} {
		master := c.MasterOf(slot)
		for _, config := range [][3]string{{"maxmemory", "1", "0"}, {"min-replicas-to-write", "2", "0"}} {
			until(t, "the health", func() bool { return s.Health(t.Context()) == nil })
			master.Do(t, "CONFIG", "SET", config[0], config[1])
			until(t, config[0]+": an error that names "+master.Addr(), func() bool {
				err := s.Health(t.Context())
				return errors.Is(err, core.ErrUnavailable) && strings.Contains(err.Error(), master.Addr())
			})
			master.Do(t, "CONFIG", "SET", config[0], config[2])
		}
		until(t, "the health", func() bool { return s.Health(t.Context()) == nil })
		if n := log.count("redis takes no writes", "address="+master.Addr()); n < 2 {
			t.Errorf("%d log lines name %s, want one for each of 2 faults", n, master.Addr())
		}
	}
}
