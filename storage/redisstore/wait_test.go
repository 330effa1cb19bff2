package redisstore_test

import (
	"errors"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/redisstore"
	"github.com/limitkeeper/limitkeeper/storage/redisstore/redistest"
)

// A call that waits for missing replicas fails, and says how many have confirmed, also if it changes nothing. The request may be
// counted; repeated with its id it counts once.
func TestWaitForMissingReplica(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	o := faulty(server.Addr())
	s := openFaulty(t, o)
	w := newWorld(t, s, 1)
	s.SetWait(redisstore.Wait{Replicas: 2, Timeout: 500 * time.Millisecond})
	host, port, err := net.SplitHostPort(server.Addr())
	if err != nil {
		t.Fatal(err)
	}
	var calls []call
	l := &load{w: w, quit: func() {}}
	for n, want := range []string{"0 of 2", "1 of 2"} {
		if n == 1 {
			redistest.Start(t, "--replicaof", host, port)
			server.AwaitReplicas(1)
		}
		for i := range w.keys {
			id := ""
			if i%2 == 0 {
				id = want
			}
			l.send(t, call{key: i, id: id})
			calls = l.callsSoFar()
			if err := calls[len(calls)-1].err; !errors.Is(err, core.ErrUnavailable) || !strings.Contains(err.Error(), want) {
				t.Errorf("Consume: %v, want ErrUnavailable with %q", err, want)
			}
		}
		for name, fn := range map[string]func(core.Tx) error{
			"writes": func(tx core.Tx) error { return tx.PutUser(&core.User{AccountID: w.account}) },
			"reads":  func(tx core.Tx) error { _, err := tx.User(w.keys[0].UserID); return err }, // it may find what a call that has failed wrote
		} {
			if err := s.Update(t.Context(), w.account, fn); !errors.Is(err, core.ErrUnavailable) || !strings.Contains(err.Error(), want) {
				t.Errorf("Update that %s: %v, want ErrUnavailable with %q", name, err, want)
			}
		}
		if err := s.Confirm(t.Context(), w.account); !errors.Is(err, core.ErrUnavailable) || !strings.Contains(err.Error(), want) {
			t.Errorf("Confirm: %v, want ErrUnavailable with %q", err, want)
		}
	}
	s.SetWait(redisstore.Wait{Replicas: 1, Timeout: 20 * time.Second})
	w.checkExact(t, calls)
	if used := w.used(t, w.keys[0].ID, 0); used != 2 {
		t.Errorf("counted %d, want the 2 requests with ids", used)
	}
	l.send(t, call{key: 0})
	if err := l.callsSoFar()[len(calls)].err; err != nil {
		t.Errorf("Consume with one replica, waiting for one: %v", err)
	}
}

// More concurrent calls than connections for WAIT are all answered soon, also while the server is stopped.
func TestManyCallsWaitForReplicas(t *testing.T) {
	server := redistest.Start(t)
	host, port, _ := net.SplitHostPort(server.Addr())
	redistest.Start(t, "--replicaof", host, port)
	server.AwaitReplicas(1)
	o := faulty(server.Addr())
	o.Timeout = time.Second
	o.Wait = redisstore.Wait{Replicas: 1, Timeout: time.Second}
	s := openFaulty(t, o)
	w := newWorld(t, s, 2)
	before := heap()
	for _, paused := range []bool{false, true} {
		if paused {
			server.Pause()
		}
		l := &load{w: w, quit: func() {}}
		var all sync.WaitGroup
		begun := time.Now()
		for range 1000 {
			all.Go(func() { l.send(t, call{key: 1}) })
		}
		all.Wait()
		calls := l.stop()
		median, longest := latencies(calls)
		t.Logf("paused %v: 1000 at once, %d answered, in %v (median), %v (longest), all after %v; the heap has grown by %d MB",
			paused, len(filterCalls(calls, outcomeAllowed)), median, longest, time.Since(begun), (heap()-before)>>20)
		if longest > 20*time.Second {
			t.Errorf("a request took %v", longest)
		}
		if grown := (heap() - before) >> 20; grown > 200 {
			t.Errorf("the heap has grown by %d MB, want less than 200", grown)
		}
	}
	server.Resume()
}
