package redisstore_test

import (
	"errors"
	"net"
	"testing"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/redisstore"
	"github.com/limitkeeper/limitkeeper/storage/redisstore/redistest"
)

// moveTo makes the address of the relay name another server. Open connections stay at the former server.
func (r *relay) moveTo(server string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.server = server
}

// A store follows its address to a new master: by an error of a call, and without calls. A store that starts while the
// address names a replica is not ready until the address names the master. Nothing that was counted is lost.
func TestMovedMaster(t *testing.T) {
	t.Parallel()
	for name, wait := range map[string]redisstore.Wait{"alone": {}, "waiting": {Replicas: 1, Timeout: 200 * time.Millisecond}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			first := redistest.Start(t)
			second := replicaOf(t, first)
			r := newRelay(t, first.Addr())
			o := faulty(r.Addr())
			o.Wait = wait
			busy, idle := openFaulty(t, o), openFaulty(t, o)
			w := newWorld(t, busy, 1)
			var calls []call
			l := &load{w: w, quit: func() {}}
			consume := func() bool {
				l.send(t, call{key: 0})
				calls = l.callsSoFar()
				return calls[len(calls)-1].err == nil
			}
			if !consume() {
				t.Fatal(calls[0].err)
			}

			second.Do(t, "REPLICAOF", "NO", "ONE")
			host, port, _ := net.SplitHostPort(second.Addr())
			first.Do(t, "REPLICAOF", host, port)
			second.AwaitReplicas(1)
			if consume() {
				t.Error("a decision on a replica")
			}
			until(t, "the health is an error", func() bool { return errors.Is(idle.Health(t.Context()), core.ErrUnavailable) })
			late := openFaulty(t, o)
			if err := late.Health(t.Context()); !errors.Is(err, core.ErrUnavailable) {
				t.Errorf("the health of a store that starts on a replica: %v", err)
			}

			r.moveTo(second.Addr())
			until(t, "a decision", consume)
			for _, s := range []*redisstore.Store{busy, idle, late} {
				until(t, "the health", func() bool { return s.Health(t.Context()) == nil })
			}
			w.checkExact(t, calls)
		})
	}
}

// replicaOf starts a replica of a server.
func replicaOf(t *testing.T, master *redistest.Server) *redistest.Server {
	t.Helper()
	host, port, err := net.SplitHostPort(master.Addr())
	if err != nil {
		t.Fatal(err)
	}
	replica := redistest.Start(t, "--replicaof", host, port)
	master.AwaitReplicas(1)
	return replica
}
