package redisstore_test

import (
	"strconv"
	"strings"
	"sync"
	"testing"

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
