package redisstore

import (
	"context"
	"maps"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/record"
)

// writes is what a transaction does when it is committed.
type writes struct {
	t           *tx
	batch       *batch
	indexes     map[string]*indexChange // by the key of the index
	locations   map[string]string       // of the counters of keys, by the id of the key; "" for none
	planHolders map[planHolder]bool     // who may hold a plan now, or no more
	claims      map[core.Digest]string
	releases    map[core.Digest]string
	hasTasks    bool
	lateTasks   []task // for numbers that keys are put with
	err         error
}

// indexed is what is added to an index and taken from it.
type indexChange struct{ add, remove []string }

// hold is a user that may hold a plan.
type planHolder struct {
	plan string
	user int64
}

// writes returns what the transaction does.
func (t *tx) writes() *writes {
	w := &writes{t: t, batch: newBatch(t.slot), indexes: map[string]*indexChange{}, locations: map[string]string{}, planHolders: map[planHolder]bool{},
		claims: map[core.Digest]string{}, releases: map[core.Digest]string{}}
	for _, id := range slices.Sorted(maps.Keys(t.keys)) {
		if c := t.keys[id]; c.written && (c.before != nil || c.after != nil) {
			w.addsData(c.before == nil)
			w.key(id, c)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(t.users)) {
		if c := t.users[id]; c.written && (c.before != nil || c.after != nil) {
			w.addsData(c.before == nil)
			w.user(id, c)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(t.plans)) {
		if c := t.plans[id]; c.written && (c.before != nil || c.after != nil) {
			w.addsData(c.before == nil)
			w.plan(id, c)
		}
	}
	for _, c := range w.lateTasks { // when all that is deleted is
		w.addTask(c)
	}
	w.common()
	return w
}

// grows notes whether something is new.
func (w *writes) addsData(is bool) { w.batch.addsData = w.batch.addsData || is }

// rest adds what is the same for all kinds.
func (w *writes) common() {
	n := w.t.slot
	for _, email := range slices.Sorted(maps.Keys(w.t.emails)) {
		if id := w.t.emails[email]; id != 0 {
			w.batch.add("HSET", n.key("emails"), email, strconv.FormatInt(id, 10))
		} else {
			w.batch.add("HDEL", n.key("emails"), email)
		}
	}
	var set, gone []string
	for _, id := range slices.Sorted(maps.Keys(w.locations)) {
		if at := w.locations[id]; at != "" {
			set = append(set, id, at)
		} else {
			gone = append(gone, id)
		}
	}
	w.batch.addMany("HSET", n.key("places"), set)
	w.batch.addMany("HDEL", n.key("places"), gone)
	for _, key := range slices.Sorted(maps.Keys(w.indexes)) {
		w.batch.addMany("ZREM", key, w.indexes[key].remove)
		w.batch.addMany("ZADD", key, w.indexes[key].add)
	}
	for h := range w.planHolders { // when both indexes that it is derived from are as they will be
		own, keys := n.users(core.UserFilter{PlanID: h.plan}), n.keys(core.KeyFilter{UserID: h.user, PlanID: &h.plan})
		w.batch.add("HOLDS", n.users(core.UserFilter{OnPlan: h.plan}), w.batch.keyNumber(own), w.batch.keyNumber(keys), w.batch.keyNumber(n.user(h.user)), strconv.FormatInt(h.user, 10))
	}
	if !w.batch.empty() {
		last := w.t.last
		w.batch.add("HSET", n.key("last"), "user", strconv.FormatInt(last["user"], 10),
			"plan", strconv.FormatInt(last["plan"], 10), "key", strconv.FormatInt(last["key"], 10))
	}
}

// record stores the record of a resource, or deletes it.
func (w *writes) record(key string, resource any, there bool) {
	if !there {
		w.batch.add("UNLINK", key)
		return
	}
	r, err := record.Encode(resource)
	if err != nil {
		w.err = err
		return
	}
	w.batch.add("SET", key, string(r))
}

// place moves an id from some indexes to others.
func (w *writes) moveInIndexes(id string, score int64, before, after []string) {
	for _, key := range before {
		if !slices.Contains(after, key) {
			w.indexChange(key).remove = append(w.indexChange(key).remove, id)
		}
	}
	for _, key := range after {
		if !slices.Contains(before, key) {
			w.indexChange(key).add = append(w.indexChange(key).add, strconv.FormatInt(score, 10), id)
		}
	}
}

func (w *writes) indexChange(key string) *indexChange {
	if w.indexes[key] == nil {
		w.indexes[key] = &indexChange{}
	}
	return w.indexes[key]
}

func (w *writes) user(id int64, c *change[core.User]) {
	n := w.t.slot
	w.record(n.user(id), c.after, c.after != nil)
	w.moveInIndexes(strconv.FormatInt(id, 10), id, w.userIndexes(c.before), w.userIndexes(c.after))
	w.batch.add("TELL", w.t.s.o.userInvalidation(w.t.account, id))
	switch {
	case c.after == nil && w.t.deferred[id] != nil:
		for _, plan := range w.t.deferred[id] { // that it may hold by its keys
			w.planHolders[planHolder{plan, id}] = true
		}
		w.addTask(task{kind: deleteUserKeys, from: id})
	case c.after == nil:
		w.addTask(task{kind: deleteUserCounters, from: id})
	case c.before == nil && c.preset:
		w.addTask(task{kind: removeTombstone, from: id})
	}
}

// userIndexes returns the indexes that a user is in, and notes which plan it holds.
func (w *writes) userIndexes(u *core.User) []string {
	if u == nil {
		return nil
	}
	keys := []string{w.t.slot.users(core.UserFilter{})}
	if u.PlanID != "" {
		w.planHolders[planHolder{u.PlanID, u.ID}] = true
		keys = append(keys, w.t.slot.users(core.UserFilter{PlanID: u.PlanID}))
	}
	return keys
}

func (w *writes) plan(id string, c *change[core.Plan]) {
	n := w.t.slot
	w.record(n.plan(id), c.after, c.after != nil)
	of := func(p *core.Plan) (keys []string, seq int64) {
		if p == nil {
			return nil, 0
		}
		return []string{n.key("plans")}, p.Seq
	}
	before, _ := of(c.before)
	after, seq := of(c.after)
	if c.before != nil && c.after != nil && c.before.Seq != seq {
		before = nil // its place changes
	}
	w.moveInIndexes(id, seq, before, after)
	w.batch.add("TELL", w.t.s.o.planInvalidation(w.t.account, id))
}

func (w *writes) key(id string, c *change[keyRecord]) {
	n := w.t.slot
	w.record(n.apiKey(id), c.after, c.after != nil)
	before, after := w.keyIndexes(c.before), w.keyIndexes(c.after)
	var seq int64
	if c.after != nil {
		seq = c.after.Seq
		w.locations[id] = encodeLocation(c.after)
	} else {
		w.locations[id] = ""
	}
	if c.before != nil && c.after != nil && c.before.Seq != seq {
		w.moveInIndexes(id, 0, before, nil)
		before = nil
	}
	w.moveInIndexes(id, seq, before, after)
	w.digests(id, c)
	w.keyTasks(c)
}

// keyIndexes returns the indexes that a key is in, and notes who holds its plan.
func (w *writes) keyIndexes(k *keyRecord) (keys []string) {
	if k == nil {
		return nil
	}
	if k.PlanID != "" {
		w.planHolders[planHolder{k.PlanID, k.UserID}] = true
	}
	for _, f := range keyFilters(&k.Key) {
		keys = append(keys, w.t.slot.keys(f))
	}
	return keys
}

// digests tells of every digest of a key, and notes which are new and which are gone.
func (w *writes) digests(id string, c *change[keyRecord]) {
	holder := w.t.account + "\x00" + id
	var before, after []core.Digest
	if c.before != nil {
		before = c.before.Digests()
	}
	if c.after != nil {
		after = c.after.Digests()
	}
	for _, d := range after {
		if !slices.Contains(before, d) {
			w.claims[d] = holder
			w.batch.add("TELL", w.t.s.o.keyInvalidation(w.t.account, d))
		}
	}
	for _, d := range before {
		if !slices.Contains(after, d) {
			w.releases[d] = holder
		}
		w.batch.add("TELL", w.t.s.o.keyInvalidation(w.t.account, d))
	}
}

// keyChores notes what becomes of the counter of a key.
func (w *writes) keyTasks(c *change[keyRecord]) {
	b, a := c.before, c.after
	switch {
	case b == nil && !c.preset:
	case b == nil:
		w.lateTasks = append(w.lateTasks, task{kind: removeTombstone, seq: a.Seq, from: a.UserID})
	case a == nil || a.Seq != b.Seq:
		if u := w.t.users[b.UserID]; u == nil || u.current() != nil { // else it goes with its user
			w.addTask(task{kind: deleteKeyCounter, seq: b.Seq, from: b.UserID})
		}
		if a != nil {
			w.lateTasks = append(w.lateTasks, task{kind: removeTombstone, seq: a.Seq, from: a.UserID})
		}
	case a.UserID != b.UserID:
		if a.PresetSeq {
			w.addTask(task{kind: removeTombstone, seq: a.Seq, from: a.UserID})
		}
		w.addsData(true) // where it comes to
		w.addTask(task{kind: moveKeyCounter, seq: b.Seq, from: b.UserID, to: a.UserID, moveNumber: a.Moves})
	}
}

func (w *writes) addTask(c task) {
	w.hasTasks = true
	w.batch.add("RPUSH", w.t.slot.key("chores"), c.String())
}

// claim writes down whose the digests are, before they are: a key is always found.
func (s *Store) claimDigests(ctx context.Context, claims map[core.Digest]string) error {
	var g errgroup.Group
	g.SetLimit(maxParallel)
	for d, holder := range claims {
		g.Go(func() error {
			ctx, cancel := s.withTimeout(ctx)
			defer cancel()
			return unavailable(s.doWrite(ctx, s.client.B().Set().Key(s.o.digest(d)).Value(holder).Build()).Error())
		})
	}
	return g.Wait()
}

// release deletes what says whose the digests were. When it fails nothing is wrong: the
// key does not have them.
func (s *Store) releaseDigests(ctx context.Context, releases map[core.Digest]string) {
	var g errgroup.Group
	g.SetLimit(maxParallel)
	for d, holder := range releases {
		g.Go(func() error {
			ctx, cancel := s.withTimeout(ctx)
			defer cancel()
			return releaseDigestScript.read(ctx, s, []string{s.o.digest(d)}, []string{holder}).Error()
		})
	}
	_ = g.Wait()
}

// Names of what a transaction tells.
func (o *Options) userInvalidation(account string, id int64) string {
	return o.invalidationPrefix() + "{" + account + "}u" + strconv.FormatInt(id, 10)
}
func (o *Options) planInvalidation(account, id string) string {
	return o.invalidationPrefix() + "{" + account + "}p" + id
}
func (o *Options) keyInvalidation(account string, d core.Digest) string {
	return o.invalidationPrefix() + "{" + account + "}k" + encodeDigest(d)
}
func (o *Options) ownerKeyInvalidation(d core.Digest) string {
	return o.invalidationPrefix() + "{registry}o" + encodeDigest(d)
}
func (o *Options) invalidationPrefix() string { return o.Prefix + "!" }

// told returns the change that a name tells.
func (o *Options) parseInvalidation(name string) (c core.Change, ok bool) {
	name, ok = strings.CutPrefix(name, o.invalidationPrefix()+"{")
	account, what, found := strings.Cut(name, "}")
	if !ok || !found || what == "" {
		return c, false
	}
	c.Account = account
	kind, id := what[0], what[1:]
	switch kind {
	case 'u':
		c.UserID, _ = strconv.ParseInt(id, 10, 64)
		return c, c.UserID != 0
	case 'p':
		c.PlanID = id
		return c, true
	case 'k':
		c.Digest, ok = decodeDigest(id)
		return c, ok
	case 'o':
		c.Account = ""
		c.OwnerKey, ok = decodeDigest(id)
		return c, ok
	}
	return c, false
}
