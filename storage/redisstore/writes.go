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
	t        *tx
	batch    *batch
	index    map[string]*indexed // by the key of the index
	places   map[string]string   // of the counters of keys, by the id of the key; "" for none
	holds    map[hold]bool       // who may hold a plan now, or no more
	claims   map[core.Digest]string
	releases map[core.Digest]string
	chores   bool
	reused   []chore // for numbers that keys are put with
	err      error
}

// indexed is what is added to an index and taken from it.
type indexed struct{ add, remove []string }

// hold is a user that may hold a plan.
type hold struct {
	plan string
	user int64
}

// writes returns what the transaction does.
func (t *tx) writes() *writes {
	w := &writes{t: t, batch: newBatch(t.names), index: map[string]*indexed{}, places: map[string]string{}, holds: map[hold]bool{},
		claims: map[core.Digest]string{}, releases: map[core.Digest]string{}}
	for _, id := range slices.Sorted(maps.Keys(t.keys)) {
		if c := t.keys[id]; c.written && (c.before != nil || c.after != nil) {
			w.grows(c.before == nil)
			w.key(id, c)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(t.users)) {
		if c := t.users[id]; c.written && (c.before != nil || c.after != nil) {
			w.grows(c.before == nil)
			w.user(id, c)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(t.plans)) {
		if c := t.plans[id]; c.written && (c.before != nil || c.after != nil) {
			w.grows(c.before == nil)
			w.plan(id, c)
		}
	}
	for _, c := range w.reused { // when all that is deleted is
		w.chore(c)
	}
	w.rest()
	return w
}

// grows notes whether something is new.
func (w *writes) grows(is bool) { w.batch.grows = w.batch.grows || is }

// rest adds what is the same for all kinds.
func (w *writes) rest() {
	n := w.t.names
	for _, email := range slices.Sorted(maps.Keys(w.t.emails)) {
		if id := w.t.emails[email]; id != 0 {
			w.batch.add("HSET", n.key("emails"), email, strconv.FormatInt(id, 10))
		} else {
			w.batch.add("HDEL", n.key("emails"), email)
		}
	}
	var set, gone []string
	for _, id := range slices.Sorted(maps.Keys(w.places)) {
		if at := w.places[id]; at != "" {
			set = append(set, id, at)
		} else {
			gone = append(gone, id)
		}
	}
	w.batch.addMany("HSET", n.key("places"), set)
	w.batch.addMany("HDEL", n.key("places"), gone)
	for _, key := range slices.Sorted(maps.Keys(w.index)) {
		w.batch.addMany("ZREM", key, w.index[key].remove)
		w.batch.addMany("ZADD", key, w.index[key].add)
	}
	for h := range w.holds { // when both indexes that it is derived from are as they will be
		own, keys := n.users(core.UserFilter{PlanID: h.plan}), n.keys(core.KeyFilter{UserID: h.user, PlanID: &h.plan})
		w.batch.add("HOLDS", n.users(core.UserFilter{OnPlan: h.plan}), w.batch.key(own), w.batch.key(keys), w.batch.key(n.user(h.user)), strconv.FormatInt(h.user, 10))
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
func (w *writes) place(id string, score int64, before, after []string) {
	for _, key := range before {
		if !slices.Contains(after, key) {
			w.at(key).remove = append(w.at(key).remove, id)
		}
	}
	for _, key := range after {
		if !slices.Contains(before, key) {
			w.at(key).add = append(w.at(key).add, strconv.FormatInt(score, 10), id)
		}
	}
}

func (w *writes) at(key string) *indexed {
	if w.index[key] == nil {
		w.index[key] = &indexed{}
	}
	return w.index[key]
}

func (w *writes) user(id int64, c *change[core.User]) {
	n := w.t.names
	w.record(n.user(id), c.after, c.after != nil)
	w.place(strconv.FormatInt(id, 10), id, w.userIndexes(c.before), w.userIndexes(c.after))
	w.batch.add("TELL", w.t.s.o.tellUser(w.t.account, id))
	switch {
	case c.after == nil && w.t.many[id] != nil:
		for _, plan := range w.t.many[id] { // that it may hold by its keys
			w.holds[hold{plan, id}] = true
		}
		w.chore(chore{kind: dropAll, from: id})
	case c.after == nil:
		w.chore(chore{kind: dropUser, from: id})
	case c.before == nil && c.numbered:
		w.chore(chore{kind: again, from: id})
	}
}

// userIndexes returns the indexes that a user is in, and notes which plan it holds.
func (w *writes) userIndexes(u *core.User) []string {
	if u == nil {
		return nil
	}
	keys := []string{w.t.names.users(core.UserFilter{})}
	if u.PlanID != "" {
		w.holds[hold{u.PlanID, u.ID}] = true
		keys = append(keys, w.t.names.users(core.UserFilter{PlanID: u.PlanID}))
	}
	return keys
}

func (w *writes) plan(id string, c *change[core.Plan]) {
	n := w.t.names
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
	w.place(id, seq, before, after)
	w.batch.add("TELL", w.t.s.o.tellPlan(w.t.account, id))
}

func (w *writes) key(id string, c *change[keyRecord]) {
	n := w.t.names
	w.record(n.apiKey(id), c.after, c.after != nil)
	before, after := w.keyIndexes(c.before), w.keyIndexes(c.after)
	var seq int64
	if c.after != nil {
		seq = c.after.Seq
		w.places[id] = encodePlace(c.after)
	} else {
		w.places[id] = ""
	}
	if c.before != nil && c.after != nil && c.before.Seq != seq {
		w.place(id, 0, before, nil)
		before = nil
	}
	w.place(id, seq, before, after)
	w.digests(id, c)
	w.keyChores(c)
}

// keyIndexes returns the indexes that a key is in, and notes who holds its plan.
func (w *writes) keyIndexes(k *keyRecord) (keys []string) {
	if k == nil {
		return nil
	}
	if k.PlanID != "" {
		w.holds[hold{k.PlanID, k.UserID}] = true
	}
	for _, f := range filtersOf(&k.Key) {
		keys = append(keys, w.t.names.keys(f))
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
			w.batch.add("TELL", w.t.s.o.tellKey(w.t.account, d))
		}
	}
	for _, d := range before {
		if !slices.Contains(after, d) {
			w.releases[d] = holder
		}
		w.batch.add("TELL", w.t.s.o.tellKey(w.t.account, d))
	}
}

// keyChores notes what becomes of the counter of a key.
func (w *writes) keyChores(c *change[keyRecord]) {
	b, a := c.before, c.after
	switch {
	case b == nil && !c.numbered:
	case b == nil:
		w.reused = append(w.reused, chore{kind: again, seq: a.Seq, from: a.UserID})
	case a == nil || a.Seq != b.Seq:
		if u := w.t.users[b.UserID]; u == nil || u.now() != nil { // else it goes with its user
			w.chore(chore{kind: dropKey, seq: b.Seq, from: b.UserID})
		}
		if a != nil {
			w.reused = append(w.reused, chore{kind: again, seq: a.Seq, from: a.UserID})
		}
	case a.UserID != b.UserID:
		if a.Again {
			w.chore(chore{kind: again, seq: a.Seq, from: a.UserID})
		}
		w.grows(true) // where it comes to
		w.chore(chore{kind: moveKey, seq: b.Seq, from: b.UserID, to: a.UserID, move: a.Moves})
	}
}

func (w *writes) chore(c chore) {
	w.chores = true
	w.batch.add("RPUSH", w.t.names.key("chores"), c.String())
}

// claim writes down whose the digests are, before they are: a key is always found.
func (s *Store) claim(ctx context.Context, claims map[core.Digest]string) error {
	var g errgroup.Group
	g.SetLimit(together)
	for d, holder := range claims {
		g.Go(func() error {
			ctx, cancel := s.within(ctx)
			defer cancel()
			return unavailable(s.doWrite(ctx, s.client.B().Set().Key(s.o.digest(d)).Value(holder).Build()).Error())
		})
	}
	return g.Wait()
}

// release deletes what says whose the digests were. When it fails nothing is wrong: the
// key does not have them.
func (s *Store) release(ctx context.Context, releases map[core.Digest]string) {
	var g errgroup.Group
	g.SetLimit(together)
	for d, holder := range releases {
		g.Go(func() error {
			ctx, cancel := s.within(ctx)
			defer cancel()
			return releaseDigestScript.read(ctx, s, []string{s.o.digest(d)}, []string{holder}).Error()
		})
	}
	_ = g.Wait()
}

// Names of what a transaction tells.
func (o *Options) tellUser(account string, id int64) string {
	return o.tell() + "{" + account + "}u" + strconv.FormatInt(id, 10)
}
func (o *Options) tellPlan(account, id string) string { return o.tell() + "{" + account + "}p" + id }
func (o *Options) tellKey(account string, d core.Digest) string {
	return o.tell() + "{" + account + "}k" + encodeDigest(d)
}
func (o *Options) tellOwnerKey(d core.Digest) string {
	return o.tell() + "{registry}o" + encodeDigest(d)
}
func (o *Options) tell() string { return o.Prefix + "!" }

// told returns the change that a name tells.
func (o *Options) told(name string) (c core.Change, ok bool) {
	name, ok = strings.CutPrefix(name, o.tell()+"{")
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
