package archive

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/limitkeeper/limitkeeper/storage/memstore"
	"github.com/limitkeeper/limitkeeper/storage/redisstore"
	"github.com/limitkeeper/limitkeeper/storage/redisstore/redistest"
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

// To Redis and back: nothing is lost on either way, on a single server and on a Cluster.
func TestRoundTripRedis(t *testing.T) {
	for name, start := range map[string]func(*testing.T) []string{
		"server":  func(t *testing.T) []string { return []string{redistest.Start(t).Addr()} },
		"cluster": func(t *testing.T) []string { return redistest.StartCluster(t).Addrs() },
	} {
		t.Run(name, func(t *testing.T) {
			addresses := start(t)
			for seed := range uint64(2) {
				source := filled(t, 200+seed, 150)
				want := everything(t, source)
				remote := openRedis(t, int(seed), addresses...)
				o := small()
				o.entryPage = 50
				mustImport(t, source, remote, o)
				wantSame(t, "in Redis", want, remote)
				back := memstore.New()
				mustImport(t, remote, back, o)
				wantSame(t, "in memory again", want, back)
			}
		})
	}
}

// A run to Redis that is cut off again and again gets to the end.
func TestCutOffRedis(t *testing.T) {
	server := redistest.Start(t)
	for seed := range uint64(1) {
		source, remote := filled(t, 210+seed, 80), openRedis(t, int(seed), server.Addr())
		cutAgainAndAgain(t, source, remote, rand.New(rand.NewPCG(seed, 4)))
		wantSame(t, "after it was cut off many times", everything(t, source), remote)
	}
}
