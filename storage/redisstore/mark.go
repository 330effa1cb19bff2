package redisstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/resource"
)

// A mark shows whether a master still has the data that it had. Each master has one, in one of
// its slots, a hash and a list:
//
//	id     random, written at the first use. FLUSHALL removes the id, and so does a restart
//	       without persistence.
//	was    the id before the latest loss, for nodes that have not seen that loss yet.
//	lost   a description of the loss. While this field exists, every node refuses every call.
//	beats  one for each second: the time of the server in milliseconds, and a random number.
//	       An old snapshot and a replica that lagged lack the latest beats.
//
// Each node remembers the id and the beats. It compares both once a second and after each break of
// a connection, and the id before it creates a counter. Replication and the append-only file
// keep the order of writes: a beat proves that every write before the beat is there.
const (
	markEvery = time.Second      // between two checks of a node
	beatAfter = markEvery - beat // a check adds a beat when the newest is older: timers may be early
	markBeats = 100              // kept beats: they span more than maxBack
	// maxBack is how many seconds of writes a failover or restart may lose before the store refuses. It is
	// longer than an ordinary failover: by default Sentinel declares a master dead after 30 s.
	maxBack = time.Minute
)

// mark is the content of a mark, as read or as remembered.
type mark struct {
	id, was, lost string
	beats         []string

	run string // run id of the server that answered, in a remembered mark
}

// markName returns the name of the n-th mark.
func (o *Options) markName(n int64) string {
	return keySlot(o.Prefix + "{m" + strconv.FormatInt(n, 10) + "}").key("mark")
}

// readMark reads a mark, compares it with the remembered one, and writes the loss that it finds, or found, into the mark. Unless
// beats is 0, it adds a beat when one is due, and keeps that many. back is how much time of writes is missing.
func (s *Store) readMark(ctx context.Context, c rueidis.Client, name string, beats int, found string) (known, now mark, back time.Duration, err error) {
	if k, ok := s.marks.Load(name); ok {
		known = k.(mark)
	}
	if beats == 0 {
		known.beats = nil // only master.check compares beats, as it reads them in order
	}
	read := func(lost string) error {
		a, err := markScript.run(ctx, c, []string{name, name + ":beats"}, []string{strconv.FormatUint(rand.Uint64(), 36),
			strconv.FormatInt(beatAfter.Milliseconds(), 10), strconv.Itoa(beats), lost, known.id}).AsStrSlice()
		if err == nil {
			now = mark{id: a[0], was: a[1], lost: a[2], beats: a[3:]}
		}
		return err
	}
	if err = read(""); err != nil {
		return known, now, 0, err
	}
	lost, back := known.compare(&now)
	if known.id == "" || known.id == now.id { // the records are missing because of another loss, which may have been accepted
		lost = cmp.Or(lost, found)
	}
	if lost != "" && now.lost == "" {
		err = read(lost)
	}
	return known, now, back, err
}

// compare compares a remembered mark with the current one. It returns a description of the loss, empty for
// none, and how much time of writes is missing.
func (k *mark) compare(now *mark) (lost string, back time.Duration) {
	switch {
	case k.id == "":
		return "", 0
	case k.id != now.id && k.id != now.was:
		return "it was emptied, or has the data of another store", 0
	case k.id != now.id:
		return "", 0
	}
	if back = behind(k.beats, now.beats); back > maxBack {
		lost = fmt.Sprintf("it lacks %v of writes", back.Round(time.Second))
	}
	return lost, back
}

// behind returns the time from the newest beat that both lists have to the newest of beats. It is 0 when now
// begins after beats: the node was away for longer than a list spans.
func behind(beats, now []string) time.Duration {
	if len(beats) == 0 || len(now) > 0 && beatTime(now[0]) > beatTime(beats[len(beats)-1]) {
		return 0
	}
	latest := beatTime(beats[len(beats)-1])
	for i := len(beats) - 1; i >= 0; i-- {
		if slices.Contains(now, beats[i]) {
			return latest - beatTime(beats[i])
		}
	}
	return latest - beatTime(beats[0]) + markEvery // at least: no beat is in both
}

// beatTime returns when a beat was written, by the clock of the server.
func beatTime(beat string) time.Duration {
	ms, _, _ := strings.Cut(beat, "-")
	n, _ := strconv.ParseInt(ms, 10, 64) // a damaged beat is an old one
	return time.Duration(n) * time.Millisecond
}

// verify returns an error when the master of a slot has lost its data: its mark has another id.
func (s *Store) verify(ctx context.Context, slot uint16) error {
	m := s.masters.ofSlot(slot)
	_, now, _, err := s.readMark(ctx, s.reads, s.o.markName(m.markNumber.Load()), 0, "")
	if err != nil {
		return unavailable(err)
	}
	if now.lost != "" { // master.check clears the loss
		s.watch.mu.Lock()
		s.watch.lostLocked(m, now.lost)
		s.watch.mu.Unlock()
	}
	return s.refusal()
}

// check looks for lost data on the master: by its mark, by evicted keys, and by missing accounts.
func (m *master) check(ctx context.Context) error {
	s, b := m.s, m.client.B()
	ctx, cancel := context.WithTimeout(ctx, s.o.Timeout)
	defer cancel()
	removed := func() rueidis.Completed {
		return b.Hget().Key(s.o.registry().key("last")).Field(string(resource.Removed)).Build()
	}
	answers := m.client.DoMulti(ctx, b.Info().Build(), b.Get().Key(s.o.registry().key("format")).Build(), removed(),
		b.Zcard().Key(s.o.registry().key("accounts")).Build(), removed())
	text, err := answers[0].ToString()
	if err != nil {
		return err
	}
	info := infoOf(text)
	if info["role"] != "master" {
		if s.oneAddress() { // the address may name another server
			s.o.conns.dropAll()
			return errReplica
		}
		return nil // the topology is about to change
	}
	accounts, notHere := answers[3].AsInt64()
	before, _ := answers[2].AsInt64() // 0 if no account was ever removed
	after, _ := answers[4].AsInt64()
	if accounts += before; notHere != nil || before != after { // another master serves the registry, or an account was removed just now
		accounts = -1
	}
	if have, err := answers[1].ToString(); err == nil {
		s.noteFormat(have)
	}
	m.unwrittenLoss = cmp.Or(m.unwrittenLoss, m.findLoss(info, accounts))
	name, run := s.o.markName(m.markNumber.Load()), info["run_id"]
	known, now, back, err := s.readMark(ctx, m.client, name, markBeats, m.unwrittenLoss)
	reply, isReply := rueidis.IsRedisErr(err)
	s.warnings.logWhile(isReply && !isTemporary(reply), s.o.Logger, m.address, time.Now(), "redis cannot be checked for lost data", "error", err)
	switch {
	case isReply:
		return nil
	case err != nil:
		return err
	}
	m.unwrittenLoss = ""
	m.noteRunID(known.run, run, back, now.lost)
	now.run = run
	s.marks.Store(name, now)
	s.watch.mu.Lock()
	defer s.watch.mu.Unlock()
	s.watch.lostLocked(m, now.lost)
	m.warnings = s.warn(m.address, info, time.Now())
	return nil
}

// isTemporary reports whether a mark is unreadable for the moment: its slot moves, or the server is no
// longer a master.
func isTemporary(e *rueidis.RedisError) bool {
	_, redirected := e.IsRedirect()
	return redirected || e.IsTryAgain() || e.IsClusterDown() || strings.HasPrefix(e.Error(), "READONLY")
}

// findLoss returns the loss that INFO or the number of accounts shows since the last check, empty for
// none. A negative number of accounts is unknown.
func (m *master) findLoss(info map[string]string, accounts int64) (loss string) {
	evicted, _ := strconv.ParseInt(info["evicted_keys"], 10, 64)
	policy := info["maxmemory_policy"]
	for _, p := range []string{policy, m.policy} { // the policy may have changed between the checks
		if m.run == info["run_id"] && evicted > m.evicted && strings.HasPrefix(p, "allkeys-") {
			loss = fmt.Sprintf("it evicted %d keys under maxmemory-policy %s", evicted-m.evicted, p)
		}
	}
	m.evicted, m.policy = evicted, policy
	if accounts >= 0 {
		if before := m.s.watch.accounts.Swap(accounts); accounts < before { // removed accounts are included
			loss = cmp.Or(loss, fmt.Sprintf("it has %d of %d accounts", accounts, before))
		}
	}
	return loss
}

// noteRunID compares the run id of the server with that of the last check. Another run id means a
// failover or a restart, unless the slot of the mark has moved between two running masters. back is the
// time of missing writes. A loss is logged by lostLocked.
func (m *master) noteRunID(before, run string, back time.Duration, lost string) {
	s, w := m.s, m.s.watch
	w.mu.Lock()
	m.run = run
	beside := before == ""
	for _, other := range w.masters {
		beside = beside || other.run == before
	}
	w.mu.Unlock()
	if beside && back == 0 {
		return
	}
	defer s.failovers.Add(1) // after the line: a caller that sees the count, and then changes wait_replicas, does not change the line
	if lost != "" {
		return
	}
	log, replicas := s.o.Logger.With("address", m.address), s.wait.Load().Replicas
	if replicas > 0 {
		log.Info("redis has failed over, or was restarted", "wait_replicas", replicas)
		return
	}
	log.Warn("redis has failed over, or was restarted: decisions of the last moments may be lost",
		"at_most", (back + 2*markEvery).Round(time.Millisecond)) // the newest beat that the node knows may be that old
}

// lostLocked notes the loss of a master, empty for none. The store refuses every call while a master has a
// loss.
func (w *watch) lostLocked(m *master, lost string) {
	log := w.s.o.Logger.With("address", m.address)
	switch before := m.loss; {
	case before == lost:
		return
	case lost == "":
		log.Warn("the loss of redis was accepted", "loss", before)
	case before == "":
		w.s.losses.Add(1)
		log.Error("redis has lost data: requests are refused until `limitkeeper store accept`", "loss", lost)
	}
	m.loss = lost
	w.refuseLocked()
}

// refuseLocked makes the store refuse calls if a master has a loss, and serve them if none has.
func (w *watch) refuseLocked() {
	for _, m := range w.masters {
		if m.loss != "" {
			err := core.Unavailable(core.Logged(fmt.Errorf("%w: %s: %s", ErrLost, m.address, m.loss)))
			w.s.refused.Store(&err)
			return
		}
	}
	w.s.refused.Store(nil)
}

// ErrLost is the cause of [core.ErrUnavailable] in every call after Redis has lost data, until
// [Store.Accept].
var ErrLost = errors.New("redis has lost data, and requests are refused until `limitkeeper store accept`")

// refusal returns why calls are refused, nil while they are served.
func (s *Store) refusal() error {
	if why := cmp.Or(s.refused.Load(), s.otherFormat.Load()); why != nil {
		return *why
	}
	return nil
}

// Accept ends the refusal on all nodes, within about a second: they go on with the data that Redis has now.
// It returns one line for each master that had a loss. An error is [core.ErrUnavailable] when a master cannot
// be reached; then the loss of others may be accepted.
func (s *Store) Accept(ctx context.Context) (lost []string, err error) {
	if err := s.beginAfterLoss(); err != nil {
		return nil, err
	}
	defer s.end()
	ctx, cancel := context.WithTimeout(ctx, s.o.Timeout)
	defer cancel()
	masters, losses := s.watch.list()
	for i, m := range masters {
		removed, err := s.client.Do(ctx, s.client.B().Hdel().Key(s.o.markName(m.markNumber.Load())).Field("lost").Build()).AsBool()
		if err != nil {
			return lost, unavailable(err)
		}
		if removed {
			lost = append(lost, m.address+": "+cmp.Or(losses[i], "a loss that another node has found"))
		}
	}
	return lost, nil
}
