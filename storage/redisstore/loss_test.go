package redisstore_test

import (
	"errors"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/redisstore"
	"github.com/limitkeeper/limitkeeper/storage/redisstore/redistest"
)

// count returns the number of lines that contain all words.
func (l *logBuffer) count(words ...string) (n int) {
	for line := range strings.Lines(l.String()) {
		if !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(line, w) }) {
			n++
		}
	}
	return n
}

// logging returns options as of faulty, and their log.
func logging(addresses ...string) (redisstore.Options, *logBuffer) {
	o, log := faulty(addresses...), &logBuffer{}
	o.Logger = slog.New(slog.NewTextHandler(log, nil))
	return o, log
}

// consumeFirst counts a request of the first key.
func (w *world) consumeFirst(t testing.TB) error {
	_, err := w.s.Consume(t.Context(), consumption(&w.keys[0], "", true))
	return err
}

// checkRefuses fails the test unless the store soon refuses every call, and the log has one line with the
// reason.
func (w *world) checkRefuses(t testing.TB, log *logBuffer, why string) {
	t.Helper()
	until(t, "a refusal", func() bool { return errors.Is(w.consumeFirst(t), redisstore.ErrLost) })
	if _, err := w.s.AccountByName(t.Context(), "health"); !errors.Is(err, redisstore.ErrLost) || !errors.Is(err, core.ErrUnavailable) || !core.IsLogged(err) {
		t.Errorf("AccountByName: %v, want ErrUnavailable for the lost data", err)
	}
	if err := w.consumeFirst(t); !strings.Contains(err.Error(), why) || !strings.Contains(err.Error(), "limitkeeper store accept") {
		t.Errorf("Consume: %v, want an error with %q that names the command", err, why)
	}
	if all, right := log.count("level=ERROR"), log.count("level=ERROR", why); all != 1 || right != 1 {
		t.Errorf("%d errors were logged, %d with %q; want one\n%s", all, right, why, log)
	}
	if st := w.s.Stats(); !st.Lost || st.Losses != 1 {
		t.Errorf("Stats: %+v, want one loss", st)
	}
}

// checkAccepted accepts the loss through the store by, and waits until w.s works again.
func (w *world) checkAccepted(t testing.TB, by *redisstore.Store) {
	t.Helper()
	if lost, err := by.Accept(t.Context()); err != nil || len(lost) != 1 {
		t.Errorf("Accept: %q, %v; want one loss", lost, err)
	}
	until(t, "the end of the refusal", func() bool { return !errors.Is(w.consumeFirst(t), redisstore.ErrLost) })
	if lost, err := by.Accept(t.Context()); err != nil || len(lost) != 0 {
		t.Errorf("Accept again: %q, %v; want none", lost, err)
	}
	if st := w.s.Stats(); st.Lost {
		t.Errorf("Stats: %+v, want no loss", st)
	}
}

// After FLUSHALL the very next decision is refused. All nodes refuse, also a node that starts later, until
// the loss is accepted on one of them.
func TestFlushRefuses(t *testing.T) {
	server := redistest.Start(t)
	o, log := logging(server.Addr())
	w := newWorld(t, openFaulty(t, o), 1)
	if err := w.consumeFirst(t); err != nil {
		t.Fatal(err)
	}
	server.Do(t, "FLUSHALL")
	for range 1000 {
		if err := w.consumeFirst(t); !errors.Is(err, core.ErrUnavailable) {
			t.Fatalf("Consume after FLUSHALL: %v, want ErrUnavailable", err)
		}
	}
	w.checkRefuses(t, log, "was emptied")
	other := openFaulty(t, o)
	if _, _, err := other.Accounts(t.Context(), core.Page{Number: 1, Size: 1}); !errors.Is(err, redisstore.ErrLost) {
		t.Errorf("Consume on a new node: %v, want a refusal", err)
	}
	w.checkAccepted(t, other)
	until(t, "the other node", func() bool {
		_, _, err := other.Accounts(t.Context(), core.Page{Number: 1, Size: 1})
		return err == nil
	})
	if err := w.consumeFirst(t); !errors.Is(err, core.ErrKeyNotFound) {
		t.Errorf("Consume with a lost key: %v, want ErrKeyNotFound", err)
	}
}

// FLUSHALL on one master of a Cluster is found, too. No counter of that master restarts at 0.
func TestFlushOfOneMasterRefuses(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t, partialCoverage...)
	o, log := logging(c.Addrs()...)
	w := newWorld(t, openFaulty(t, o), 30)
	n := c.Nodes()[0]
	masterOf := func(tag string) *redistest.Server {
		slot, err := strconv.Atoi(n.Do(t, "CLUSTER", "KEYSLOT", tag))
		if err != nil {
			t.Fatal(err)
		}
		return c.MasterOf(slot)
	}
	account, registry := masterOf("{"+w.account+"}"), masterOf("{registry}")
	for len(w.keys) > 0 { // until the first user's master has no account
		if m := masterOf("{" + w.account + "/" + strconv.FormatInt(w.keys[0].UserID, 10) + "}"); m != account && m != registry {
			break
		}
		w.keys = w.keys[1:]
	}
	master := c.MasterOf(w.slotOf(t, n, w.keys[0].UserID))
	l := w.startLoad(t, 4)
	l.useAllKeys(t)
	of := map[int]bool{}
	for i := range w.keys {
		of[i] = c.MasterOf(w.slotOf(t, n, w.keys[i].UserID)) == master
	}
	master.Do(t, "FLUSHALL")
	flushed := time.Now()
	w.checkRefuses(t, log, "was emptied")
	calls := l.stop()
	there := func(c call) bool { return of[c.key] }
	wrong := filterCalls(calls, outcomeAllowed, there, after(flushed))
	if len(wrong) > 0 {
		t.Errorf("%d requests were allowed to users whose counts were lost", len(wrong))
	}
	t.Logf("%d requests of users of the master answered before, %d allowed after; elsewhere %d", len(filterCalls(calls, outcomeAllowed, there, before(flushed))),
		len(wrong), len(filterCalls(calls, outcomeAllowed, after(flushed), func(c call) bool { return !of[c.key] })))
	w.checkAccepted(t, w.s)
	if err := w.consumeFirst(t); err != nil {
		t.Errorf("Consume after the loss was accepted: %v", err)
	}
}

// The store refuses a server that returns empty, or with an old snapshot.
func TestRestartRefuses(t *testing.T) {
	for _, c := range []struct {
		name string
		save func(t *testing.T, server *redistest.Server)
		why  string
	}{
		{"without files", func(*testing.T, *redistest.Server) {}, "was emptied"},
		{"with an old snapshot", func(t *testing.T, server *redistest.Server) {
			beats := []string{}
			for back := range 120 { // beats of the two minutes before the snapshot
				at := time.Now().Add(-time.Duration(back) * time.Second)
				beats = append([]string{strconv.FormatInt(at.UnixMilli(), 10) + "-beat"}, beats...)
			}
			server.Do(t, "DEL", firstBeats)
			server.Do(t, "RPUSH", firstBeats, beats[0])
			server.Do(t, "SAVE")
			server.Do(t, append([]string{"RPUSH", firstBeats}, beats[20:]...)...)
		}, "it lacks 1m"},
	} {
		t.Run(c.name, func(t *testing.T) {
			server := redistest.Start(t)
			o, log := logging(server.Addr())
			w := newWorld(t, open(t, o), 1)
			_ = w.s.Close()
			c.save(t, server)
			w.s = openFaulty(t, o)
			awaitBeat(t, server)
			server.Kill()
			server.Restart()
			w.checkRefuses(t, log, c.why)
			w.checkAccepted(t, openFaulty(t, o)) // a call on a connection of w.s from before the restart can fail
		})
	}
}

// firstBeats is the list of beats of mark 0.
const firstBeats = redisstore.DefaultPrefix + "{m0}mark:beats"

// awaitBeat waits for two new beats of mark 0, so that a complete check has run.
func awaitBeat(t testing.TB, server *redistest.Server) {
	t.Helper()
	for range 2 {
		beat := server.Do(t, "LINDEX", firstBeats, "-1")
		until(t, "a beat", func() bool { return server.Do(t, "LINDEX", firstBeats, "-1") != beat })
	}
}

// A restart with an append-only file is no loss. The store goes on, and warns that the latest decisions
// may be missing.
func TestRestartGoesOn(t *testing.T) {
	server := redistest.Start(t, "--appendonly", "yes", "--appendfsync", "always")
	o, log := logging(server.Addr())
	w := newWorld(t, openFaulty(t, o), 1)
	for n := range 3 {
		awaitBeat(t, server)
		server.Kill()
		server.Restart()
		until(t, "a decision", func() bool { return w.consumeFirst(t) == nil })
		until(t, "the restart to be noticed", func() bool { return w.s.Stats().Failovers == uint64(n)+1 })
	}
	if st := w.s.Stats(); st.Losses > 0 || log.count("level=ERROR") > 0 || log.count("level=WARN", "failed over", "at_most=2s") != 3 {
		t.Errorf("%+v\n%s\nwant no loss, and a warning for each restart", st, log)
	}
}

// Moving the slot of a mark to another master is neither a loss nor a failover.
func TestMovedMark(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t)
	o, _ := logging(c.Addrs()...)
	w := newWorld(t, openFaulty(t, o), 1)
	slot, err := strconv.Atoi(c.Nodes()[0].Do(t, "CLUSTER", "KEYSLOT", "{m0}"))
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		from := c.MasterOf(slot)
		to := c.Nodes()[(nodeOf(c, from)+1)%3]
		moveSlot(t, c, slot, from, to)
		awaitBeat(t, to)
	}
	if st := w.s.Stats(); st.Losses > 0 || st.Failovers > 0 || st.Away > 0 {
		t.Errorf("Stats: %+v, want no loss and no failover", st)
	}
}

// Evicted keys may be counters: the store refuses, even if the eviction policy was set while it was open.
func TestEvictionRefuses(t *testing.T) {
	server := redistest.Start(t)
	o, log := logging(server.Addr())
	w := newWorld(t, openFaulty(t, o), 100)
	for i := range w.keys {
		if _, err := w.s.Consume(t.Context(), consumption(&w.keys[i], "", true)); err != nil {
			t.Fatal(err)
		}
	}
	server.Do(t, "CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
	until(t, "a warning", func() bool { return log.count("level=WARN", "noeviction", "maxmemory_policy=allkeys-lru") == 1 })
	awaitBeat(t, server)
	fill(t, server)
	w.checkRefuses(t, log, "evicted")
	server.Do(t, "CONFIG", "SET", "maxmemory", "0")
	awaitBeat(t, server)
	w.checkAccepted(t, w.s)
}

// An account that is missing without a removal is a loss.
func TestMissingAccountRefuses(t *testing.T) {
	server := redistest.Start(t)
	o, log := logging(server.Addr())
	w := newWorld(t, openFaulty(t, o), 1)
	awaitBeat(t, server)
	server.Do(t, "ZREM", redisstore.DefaultPrefix+"{registry}accounts", w.account)
	w.checkRefuses(t, log, "0 of 1 accounts")
	w.checkAccepted(t, w.s)
}

// Full memory is not a loss.
func TestFullMemoryIsNoLoss(t *testing.T) {
	server := redistest.Start(t)
	o, log := logging(server.Addr())
	w := newWorld(t, openFaulty(t, o), 1)
	fill(t, server)
	awaitBeat(t, server)
	if err := w.consumeFirst(t); err == nil || errors.Is(err, redisstore.ErrLost) || log.count("level=ERROR") > 0 {
		t.Errorf("Consume: %v, want an error about full memory\n%s", err, log)
	}
}

// The store warns of a replica without wait_replicas, until wait_replicas is set.
func TestWarnsOfReplica(t *testing.T) {
	server := redistest.Start(t, "--appendonly", "yes")
	o, log := logging(server.Addr())
	s := openFaulty(t, o)
	if st := s.Stats(); st.Warnings != 0 {
		t.Errorf("%d warnings, want none", st.Warnings)
	}
	host, port, _ := strings.Cut(server.Addr(), ":")
	redistest.Start(t, "--replicaof", host, port)
	until(t, "a warning", func() bool { return log.count("level=WARN", "set wait_replicas") == 1 && s.Stats().Warnings == 1 })
	s.SetWait(redisstore.Wait{Replicas: 1, Timeout: time.Second})
	until(t, "the end of the warning", func() bool { return s.Stats().Warnings == 0 })
}

// A Sentinel master that loses its replica and the sentinels, but not the store, goes on counting until
// the replica takes over. Without wait_replicas these counts are lost, and a warning states the maximum
// time. With wait_replicas no answered decision is lost.
func TestCutOffMaster(t *testing.T) {
	t.Parallel()
	for name, wait := range map[string]redisstore.Wait{"no wait_replicas": {}, "wait_replicas 1": {Replicas: 1, Timeout: 500 * time.Millisecond}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := redistest.StartSentinel(t)
			for _, s := range n.Servers() {
				s.Do(t, "ACL", "SETUSER", "limitkeeper", "on", ">secret", "~*", "&*", "+@all")
			}
			o, log := logging(n.Addrs()...)
			o.Sentinel, o.Wait, o.Username, o.Password = n.Name(), wait, "limitkeeper", "secret"
			s := openFaulty(t, o)
			w := newWorld(t, s, 2)
			l := w.startLoad(t, 8)
			l.useAllKeys(t)
			master := n.Master()
			awaitBeat(t, master)
			cut := time.Now()
			cutOff(t, master)
			until(t, "another master", func() bool { return n.Master() != master })
			until(t, "the failover to be noticed", func() bool { return s.Stats().Failovers == 1 })
			s.SetWait(redisstore.Wait{}) // the new master has no replica
			over := time.Now()
			l.awaitAllowed(t, over)
			calls := l.stop()
			answered, lost := 0, 0
			for i, n := range countCalls(w, calls) {
				answered += n.answered
				lost += max(0, n.answered-w.used(t, w.keys[i].ID, 0))
			}
			t.Logf("another master %v after the cut: %d of %d answered requests forgotten, %d failed", over.Sub(cut), lost, answered, len(filterCalls(calls, failed)))
			if st := s.Stats(); st.Losses > 0 {
				t.Errorf("Stats: %+v, want no loss", st)
			}
			if wait.Replicas > 0 && lost > 0 {
				t.Errorf("%d answered requests were forgotten", lost)
			}
			t.Log(log)
			if warned := log.count("level=WARN", "failed over", "at_most"); (warned == 1) != (wait.Replicas == 0) {
				t.Errorf("warned %d times\n%s", warned, log)
			}
		})
	}
}

// cutOff disables the default user. This blocks replicas, sentinels, and the methods of redistest.Server.
func cutOff(t testing.TB, server *redistest.Server) {
	t.Helper()
	c, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{server.Addr()}, Username: "limitkeeper", Password: "secret",
		ForceSingleClient: true, DisableCache: true})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for _, command := range [][]string{{"ACL", "SETUSER", "default", "off"}, {"CLIENT", "KILL", "USER", "default"}, {"CLIENT", "KILL", "TYPE", "replica"}} {
		if err := c.Do(t.Context(), c.B().Arbitrary(command...).Build()).Error(); err != nil {
			t.Fatal(err)
		}
	}
}
