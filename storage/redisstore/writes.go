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

// writes collects everything that a transaction writes when it commits.
type writes struct {
	t           *tx
	batch       *batch
	indexes     map[string]*indexChange // by key of the index
	locations   map[string]string       // encoded locations of key counters by key id; "" deletes
	planHolders map[planHolder]bool     // users that may start or stop to hold a plan
	claims      map[core.Digest]string
	releases    map[core.Digest]string
	hasTasks    bool
	lateTasks   []task // added behind all others
	err         error
}

// indexChange lists the ids that a transaction adds to an index and removes from it.
type indexChange struct{ add, remove []string }

// planHolder is a user that may hold a plan, itself or by one of its keys.
type planHolder struct {
	plan string
	user int64
}

// writes returns the writes of the transaction.
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
	for _, c := range w.lateTasks { // behind the tasks that delete
		w.addTask(c)
	}
	w.common()
	return w
}

// addsData records whether the batch creates a resource, and so needs free memory.
func (w *writes) addsData(is bool) { w.batch.addsData = w.batch.addsData || is }

// common adds the writes that concern no single resource: unique members of users, locations, indexes, last ids.
func (w *writes) common() {
	n := w.t.slot
	for m, id := range w.t.unique {
		if id != 0 {
			w.batch.add("HSET", m.hash, m.field, strconv.FormatInt(id, 10))
		} else {
			w.batch.add("HDEL", m.hash, m.field)
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
	w.batch.addMany("HSET", n.key("locations"), set)
	w.batch.addMany("HDEL", n.key("locations"), gone)
	for _, key := range slices.Sorted(maps.Keys(w.indexes)) {
		w.batch.addMany("ZREM", key, w.indexes[key].remove)
		w.batch.addMany("ZADD", key, w.indexes[key].add)
	}
	for h := range w.planHolders { // behind the changes of both indexes that it reads
		own, keys := n.users(core.UserFilter{PlanID: h.plan}), n.keys(core.KeyFilter{UserID: h.user, PlanID: &h.plan})
		w.batch.add("SYNC_HOLDER", n.users(core.UserFilter{OnPlan: h.plan}), w.batch.keyNumber(own), w.batch.keyNumber(keys), w.batch.keyNumber(n.user(h.user)), strconv.FormatInt(h.user, 10))
	}
	if !w.batch.empty() {
		last := w.t.last
		w.batch.add("HSET", n.key("last"), "user", strconv.FormatInt(last["user"], 10),
			"plan", strconv.FormatInt(last["plan"], 10), "key", strconv.FormatInt(last["key"], 10))
	}
}

// record stores a resource, or deletes it if exists is false.
func (w *writes) record(key string, resource any, exists bool) {
	if !exists {
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

// moveInIndexes removes an id from the indexes in before, and adds it to those in after.
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
	w.batch.add("INVALIDATE", w.t.s.o.userInvalidation(w.t.account, id))
	switch {
	case c.after == nil && w.t.deferred[id] != nil:
		for _, plan := range w.t.deferred[id] { // its keys may hold any plan
			w.planHolders[planHolder{plan, id}] = true
		}
		w.addTask(task{kind: deleteUserKeys, from: id})
	case c.after == nil:
		w.addTask(task{kind: deleteUserCounters, from: id})
	case c.before == nil && c.preset:
		w.addTask(task{kind: removeTombstone, from: id})
	}
}

// userIndexes returns the indexes that contain a user, and adds the user to planHolders.
func (w *writes) userIndexes(u *core.User) (keys []string) {
	if u == nil {
		return nil
	}
	if u.PlanID != "" {
		w.planHolders[planHolder{u.PlanID, u.ID}] = true
	}
	for _, f := range u.Filters() {
		keys = append(keys, w.t.slot.users(f))
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
		before = nil // the score changes
	}
	w.moveInIndexes(id, seq, before, after)
	w.batch.add("INVALIDATE", w.t.s.o.planInvalidation(w.t.account, id))
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

// keyIndexes returns the indexes that contain a key, and adds its user to planHolders.
func (w *writes) keyIndexes(k *keyRecord) (keys []string) {
	if k == nil {
		return nil
	}
	if k.PlanID != "" {
		w.planHolders[planHolder{k.PlanID, k.UserID}] = true
	}
	for _, f := range k.Filters() {
		keys = append(keys, w.t.slot.keys(f))
	}
	return keys
}

// digests invalidates all digests of a key. It claims the new digests and releases the removed ones.
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
			w.batch.add("INVALIDATE", w.t.s.o.keyInvalidation(w.t.account, d))
		}
	}
	for _, d := range before {
		if !slices.Contains(after, d) {
			w.releases[d] = holder
		}
		w.batch.add("INVALIDATE", w.t.s.o.keyInvalidation(w.t.account, d))
	}
}

// keyTasks adds the tasks for the counter of a key.
func (w *writes) keyTasks(c *change[keyRecord]) {
	b, a := c.before, c.after
	switch {
	case b == nil && !c.preset:
	case b == nil:
		w.lateTasks = append(w.lateTasks, task{kind: removeTombstone, seq: a.Seq, from: a.UserID})
	case a == nil || a.Seq != b.Seq:
		if u := w.t.users[b.UserID]; u == nil || u.current() != nil { // otherwise the task of the user deletes it
			w.addTask(task{kind: deleteKeyCounter, seq: b.Seq, from: b.UserID})
		}
		if a != nil {
			w.lateTasks = append(w.lateTasks, task{kind: removeTombstone, seq: a.Seq, from: a.UserID})
		}
	case a.UserID != b.UserID:
		if a.PresetSeq {
			w.addTask(task{kind: removeTombstone, seq: a.Seq, from: a.UserID})
		}
		w.addsData(true) // in the slot of the new user
		w.addTask(task{kind: moveKeyCounter, seq: b.Seq, from: b.UserID, to: a.UserID, move: a.Moves})
	}
}

func (w *writes) addTask(c task) {
	w.hasTasks = true
	w.batch.add("RPUSH", w.t.slot.key("outbox"), c.String())
}

// claimDigests adds keys to the entries of their digests before the commit, so that a committed key is always found. The
// other keys of an entry stay: if the commit fails, they still have the digest.
func (s *Store) claimDigests(ctx context.Context, claims map[core.Digest]string) error {
	return s.eachDigest(ctx, claimDigestScript, claims)
}

// releaseDigests removes keys from the entries of their former digests. A failure is harmless: a key that lacks the
// digest is ignored.
func (s *Store) releaseDigests(ctx context.Context, releases map[core.Digest]string) {
	_ = s.eachDigest(ctx, releaseDigestScript, releases)
}

// eachDigest runs a script on the entry of each digest, in parallel.
func (s *Store) eachDigest(ctx context.Context, c *script, holders map[core.Digest]string) error {
	var g errgroup.Group
	g.SetLimit(maxParallel)
	for d, holder := range holders {
		g.Go(func() error {
			ctx, cancel := s.withTimeout(ctx)
			defer cancel()
			return unavailable(c.write(ctx, s, []string{s.o.digest(d)}, []string{holder}).Error())
		})
	}
	return g.Wait()
}

// Names of invalidations.
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
func (o *Options) accountInvalidation(account, keyPrefix string) string {
	return o.invalidationPrefix() + "{registry}a" + account + "/" + keyPrefix
}
func (o *Options) invalidationPrefix() string { return o.Prefix + "!" }

// parseInvalidation returns the change that an invalidation names.
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
	case 'a':
		i := strings.LastIndexByte(id, '/')
		if i < 0 {
			return c, false
		}
		c.Account, c.KeyPrefix = id[:i], id[i+1:]
		return c, c.KeyPrefix != ""
	case 'o':
		c.Account = ""
		c.OwnerKey, ok = decodeDigest(id)
		return c, ok
	}
	return c, false
}
