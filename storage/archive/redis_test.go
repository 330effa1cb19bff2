package archive

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/redisstore"
	"github.com/limitkeeper/limitkeeper/storage/redisstore/redistest"
	"github.com/limitkeeper/limitkeeper/storage/storetest"
)

// openRedis opens a store under a prefix of its own.
func openRedis(t *testing.T, n int, addresses ...string) *redisstore.Store {
	t.Helper()
	s, err := redisstore.Open(t.Context(), redisstore.Options{Addresses: addresses, Prefix: fmt.Sprintf("test%d:", n), Timeout: 10 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// From disk to Redis and back: nothing is lost on either way, on a single server and on a Cluster.
func TestRoundTripRedis(t *testing.T) {
	for name, start := range map[string]func(*testing.T) []string{
		"server":  func(t *testing.T) []string { return []string{redistest.Start(t).Addr()} },
		"cluster": func(t *testing.T) []string { return redistest.StartCluster(t).Addrs() },
	} {
		t.Run(name, func(t *testing.T) {
			addresses, prefix := start(t), 0
			disk := func() storetest.Opened { return onDisk(t) }
			redis := func() storetest.Opened {
				prefix++
				open := func(testing.TB) core.Store { return openRedis(t, prefix, addresses...) }
				return storetest.Opened{Store: open(t), Reopen: open}
			}
			o := small()
			o.entryPage = 50
			roundTrips(t, 3, o, disk, redis, disk)
		})
	}
}

// A run to Redis that is cut off again and again gets to the end.
func TestCutOffRedis(t *testing.T) {
	server := redistest.Start(t)
	source, remote := filled(t, 210), openRedis(t, 0, server.Addr())
	cutAgainAndAgain(t, source, remote, rand.New(rand.NewPCG(1, 4)))
	wantSame(t, "after it was cut off many times", everything(t, source), remote)
}
