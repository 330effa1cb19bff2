package redisstore

import (
	"strings"
	"testing"
	"time"

	"github.com/limitkeeper/limitkeeper/storage/redisstore/redistest"
)

// Cluster nodes that announce no host, as behind a gateway, have the host of the node that answered. If the first
// address is down, the store finds the masters through the others.
func TestTopology(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t, "--cluster-preferred-endpoint-type", "unknown-endpoint")
	s, err := Open(t.Context(), Options{Addresses: c.Addrs(), Timeout: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	for n := range 2 {
		for range 20 {
			masters, err := s.topology(t.Context())
			if err != nil || len(masters) != 3 {
				t.Fatalf("topology: %d masters, %v; want 3", len(masters), err)
			}
			for address := range masters {
				if !strings.HasPrefix(address, "127.0.0.1:") {
					t.Errorf("a master at %q, want a host", address)
				}
			}
		}
		if n == 0 {
			c.Nodes()[5].Kill() // a replica
		}
	}
}

// The store opens on a Cluster with a node that does not answer, as long as all slots are served.
func TestOpenWithoutReplica(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t, "--cluster-node-timeout", "15000")
	c.Nodes()[5].Pause()
	defer c.Nodes()[5].Resume()
	for range 2 {
		s, err := Open(t.Context(), Options{Addresses: c.Addrs(), Timeout: time.Second})
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
}
