package redisstore

import (
	"cmp"
	"maps"
	"slices"
	"strconv"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/secrets"
	"github.com/limitkeeper/limitkeeper/storage/resource"
)

// writes collects everything that a transaction writes when it commits.
type writes struct {
	r          *reader
	batch      *batch
	claims     map[secrets.Digest]string // the key that has the digest after the commit
	releases   map[secrets.Digest]string // the key that had it
	hasTasks   bool
	deleteUser string   // the kind of the task of a deleted user
	lateTasks  []task   // added behind all others
	located    []string // id and encoded location of each key whose counter has a new one
	gone       []string // ids of the keys whose counter has none
}

// writes returns the writes of changes.
func (r *reader) writes(c *resource.Changes) (*writes, error) {
	w := &writes{r: r, batch: newBatchOf(r.version), claims: map[secrets.Digest]string{}, releases: map[secrets.Digest]string{}}
	w.batch.addsData = c.Creates
	if w.deleteUser = keepDeletedDays; c.Purges {
		w.deleteUser = deleteUserCounters
	}
	w.records(c)
	w.audit(&c.Audit)
	w.registry(c)
	for _, p := range c.Plans {
		w.invalidate(core.Change{PlanID: either(p).ID})
	}
	if len(c.Prices) > 0 {
		w.invalidate(core.Change{Prices: true})
	}
	if len(c.Webhooks) > 0 || slices.ContainsFunc(c.Events, isNewlyPending) {
		w.invalidate(core.Change{Webhooks: true})
	}
	deleted := map[int64]bool{}
	for _, u := range c.Users {
		deleted[either(u).ID] = u.After == nil
	}
	for _, u := range c.Users { // first: a key may move to the user
		if u.Before == nil && u.Given {
			w.addTask(task{kind: removeTombstone, from: u.After.ID})
		}
	}
	if err := w.keys(c.Keys, deleted); err != nil {
		return nil, err
	}
	for _, u := range c.Users {
		w.user(u)
	}
	for _, k := range w.lateTasks { // behind the tasks that delete
		w.addTask(k)
	}
	return w, nil
}

// isNewlyPending reports whether an event is new and waits for a webhook.
func isNewlyPending(e *resource.Change[core.Event]) bool {
	return e.Before == nil && e.After != nil && len(e.After.Deliveries) > 0
}

// either returns the resource before a change, or after it if the resource is new.
func either[T any](c *resource.Change[T]) *T {
	if c.Before != nil {
		return c.Before
	}
	return c.After
}

// records adds the records, sets, unique values and last numbers.
func (w *writes) records(c *resource.Changes) {
	n, b := w.r.slot, w.batch
	for _, x := range c.Records {
		if x.Value == nil {
			b.add("UNLINK", n.record(x.Kind, x.ID))
		} else {
			b.add("SET", n.record(x.Kind, x.ID), string(x.Value))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(c.Sets)) {
		var gone, come []string
		for _, m := range c.Sets[name].Remove {
			gone = append(gone, m.ID)
		}
		for _, m := range c.Sets[name].Add {
			come = append(come, strconv.FormatInt(m.Number, 10), m.ID)
		}
		b.addMany("ZREM", n.key(name), gone)
		b.addMany("ZADD", n.key(name), come)
	}
	for u, id := range c.Unique {
		switch {
		case id == "":
			b.add("HDEL", n.key(u.Name), u.Value)
		case w.r.in.Registry: // the version of an account does not show what others of the registry have taken
			b.add("CLAIM", n.key(u.Name), u.Value, id)
		default:
			b.add("HSET", n.key(u.Name), u.Value, id)
		}
	}
	for kind, last := range c.Last {
		b.add("HSET", n.key("last"), string(kind), strconv.FormatInt(last, 10))
	}
}

// registry adds the invalidations of accounts and owner's keys.
func (w *writes) registry(c *resource.Changes) {
	for _, a := range c.Accounts {
		if a.After == nil {
			w.batch.endVersion(w.r.slot.key("version:" + a.Before.ID))
			w.batch.add("UNLINK", w.r.slot.key("audit:"+a.Before.ID))
			w.invalidate(core.Change{Account: a.Before.ID, State: true})
			continue
		}
		if a.Before != nil {
			w.invalidate(core.Change{Account: a.After.ID, KeyPrefix: a.After.PrefixOfNewKeys()})
			if a.Before.Closed() != a.After.Closed() {
				w.invalidate(core.Change{Account: a.After.ID, State: true})
			}
		}
	}
	for _, k := range c.OwnerKeys {
		w.batch.add("INVALIDATE", w.r.s.o.invalidation(w.r.slot, core.Change{OwnerKey: either(k).Digest}))
	}
}

// invalidate reports a change to all nodes.
func (w *writes) invalidate(c core.Change) {
	c.Account = cmp.Or(c.Account, w.r.in.Account)
	w.batch.add("INVALIDATE", w.r.s.o.invalidation(w.r.slot, c))
}

// user invalidates a user, and deletes the counters of a deleted one.
func (w *writes) user(c *resource.Change[core.User]) {
	w.invalidate(core.Change{UserID: either(c).ID})
	if c.After == nil {
		w.addTask(task{kind: w.deleteUser, from: c.Before.ID})
	}
}

// keys adds the digests, tasks and locations of changed keys. The task of a deleted user deletes the counters of its keys.
func (w *writes) keys(all []*resource.Change[core.Key], deletedUsers map[int64]bool) error {
	var moved []string
	for _, c := range all {
		if moves(c) {
			moved = append(moved, c.After.ID)
		}
	}
	was, err := w.r.locationsOf(moved)
	if err != nil {
		return err
	}
	for _, c := range all {
		w.digests(c)
		w.counter(c, was[either(c).ID], deletedUsers)
	}
	w.batch.addMany("HSET", w.r.slot.key("locations"), w.located)
	w.batch.addMany("HDEL", w.r.slot.key("locations"), w.gone)
	return nil
}

// moves reports whether a key moves to another user, with its counter.
func moves(c *resource.Change[core.Key]) bool {
	return c.Before != nil && c.After != nil && c.Before.Seq == c.After.Seq && c.Before.UserID != c.After.UserID
}

// digests invalidates all digests of a key. It claims the new digests and releases the removed ones.
func (w *writes) digests(c *resource.Change[core.Key]) {
	holder := w.r.in.Account + "\x00" + either(c).ID
	var before, after []secrets.Digest
	if c.Before != nil {
		before = c.Before.Digests()
	}
	if c.After != nil {
		after = c.After.Digests()
	}
	for _, d := range after {
		if !slices.Contains(before, d) {
			w.claims[d] = holder
			w.invalidate(core.Change{Digest: d})
		}
	}
	for _, d := range before {
		if !slices.Contains(after, d) {
			w.releases[d] = holder
		}
		w.invalidate(core.Change{Digest: d})
	}
}

// counter adds the tasks for the counter of a key, and its location. was is the location of a key that moves.
func (w *writes) counter(c *resource.Change[core.Key], was location, deletedUsers map[int64]bool) {
	b, a := c.Before, c.After
	switch {
	case moves(c):
		was.moves++
		if was.given {
			w.addTask(task{kind: removeTombstone, seq: a.Seq, from: a.UserID})
		}
		w.batch.addsData = true // in the slot of the new user
		w.addTask(task{kind: moveKeyCounter, seq: b.Seq, from: b.UserID, to: a.UserID, move: was.moves})
		w.located = append(w.located, a.ID, encodeLocation(a, was.moves, was.given))
		return
	case b != nil && a != nil && b.Seq == a.Seq:
		return
	case b != nil && !deletedUsers[b.UserID]:
		w.addTask(task{kind: deleteKeyCounter, seq: b.Seq, from: b.UserID})
	}
	if a == nil {
		w.gone = append(w.gone, b.ID)
		return
	}
	if c.Given || b != nil {
		w.lateTasks = append(w.lateTasks, task{kind: removeTombstone, seq: a.Seq, from: a.UserID})
	}
	w.located = append(w.located, a.ID, encodeLocation(a, 0, c.Given))
}

func (w *writes) addTask(c task) {
	w.hasTasks = true
	w.batch.add("RPUSH", w.r.slot.key("outbox"), c.String())
}
