package migrate

import (
	"context"
	"fmt"

	"github.com/limitkeeper/limitkeeper/core"
)

// merge puts the entries of the histories of some users and keys in one order in which each
// history has its own. Times do not tell it: clocks step back. But an entry that is in the
// history of its user and in that of its key is the same one: of the entries of a user with
// a key the last in one history is the last in the other, the last but one the last but one.
//
// A history is read where it has what no other has. All that a key has used which was always
// the same user's is in the history of this user, which is enough, unless the store lets go
// of old entries.
//
// One of the two histories may have more: a deleted key or user has none, and where a store
// keeps the newest entries only it may have let go of some. Those come before the others.
type merge struct {
	account string
	toCap   int

	histories map[core.CounterID]*sequence // that are read
	pairs     map[pair]*counts
	alone     map[core.CounterID]int // entries that come first: those that other histories have and this one has not
	rest      map[core.CounterID]int // entries that are still to come, of histories that the target keeps

	ready map[int64][]*sequence // whose head can be taken, by its user
	users []int64               // who have some, the one whose turn it is first
}

// pair is a user and a key.
type pair struct {
	user int64
	key  string
}

// counts is how many entries of a pair are still to come in the history of each that is
// read.
type counts struct{ ofUser, ofKey int }

// readAtOnce is about how many entries of all histories of a group are in memory.
const readAtOnce = 20_000

// newMerge returns the merge of the histories of users and of their keys.
func newMerge(h *histories, all []*survey) *merge {
	g := &merge{
		account: h.account, toCap: h.toCap, histories: map[core.CounterID]*sequence{}, pairs: map[pair]*counts{},
		alone: map[core.CounterID]int{}, rest: map[core.CounterID]int{}, ready: map[int64][]*sequence{},
	}
	n := len(all)
	for _, s := range all {
		n += len(s.moved)
	}
	size := min(h.o.read, max(readAtOnce/n, 10))
	for _, s := range all {
		g.read(h, ofUser(h.account, s.user), s.total, size)
		for id, n := range s.byKey {
			g.pair(s.user, id).ofUser += n
		}
		for id := range s.keys {
			g.rest[ofKey(h.account, id)] = 0
		}
		for _, k := range s.moved {
			g.read(h, ofKey(h.account, k.id), k.total, size)
			for user, n := range k.byUser {
				g.pair(user, k.id).ofKey += n
			}
		}
	}
	g.count()
	return g
}

func (g *merge) read(h *histories, of core.CounterID, total, size int) {
	g.histories[of] = &sequence{from: h.from, of: of, since: h.since, size: size, left: total}
	g.rest[of] = 0
}

func (g *merge) pair(user int64, key string) *counts {
	p := pair{user, key}
	if g.pairs[p] == nil {
		g.pairs[p] = &counts{}
	}
	return g.pairs[p]
}

// count counts what is to come.
func (g *merge) count() {
	for p, n := range g.pairs {
		user, key := ofUser(g.account, p.user), ofKey(g.account, p.key)
		most := max(n.ofUser, n.ofKey)
		for _, of := range []core.CounterID{user, key} {
			if _, kept := g.rest[of]; kept {
				g.rest[of] += most
			}
		}
		if g.histories[user] != nil {
			g.alone[user] += most - n.ofUser
		}
		if g.histories[key] != nil {
			g.alone[key] += most - n.ofKey
		}
	}
}

// total returns how many entries are to come.
func (g *merge) total() (n int64) {
	for _, c := range g.pairs {
		n += int64(max(c.ofUser, c.ofKey))
	}
	return n
}

// run calls fn with each entry once, and with whether the target would keep it. As long as
// there are entries of the same user they follow each other: so they can be appended
// together.
func (g *merge) run(ctx context.Context, fn func(e *core.Entry, needed bool) error) error {
	for _, q := range g.histories {
		if err := q.advance(ctx); err != nil {
			return err
		}
	}
	for _, q := range g.histories {
		g.look(q)
	}
	for ; len(g.users) > 0; g.users = g.users[1:] {
		user := g.users[0]
		for len(g.ready[user]) > 0 {
			last := len(g.ready[user]) - 1
			q := g.ready[user][last]
			g.ready[user] = g.ready[user][:last]
			if err := g.take(ctx, q, fn); err != nil {
				return err
			}
		}
		delete(g.ready, user)
	}
	for of, q := range g.histories {
		if q.head != nil {
			return fmt.Errorf("%w: the history of %s does not go with the others", ErrChanged, nameOf(of))
		}
	}
	return nil
}

// look sees whether the head of a history can be taken, and lets it be if so.
func (g *merge) look(q *sequence) {
	if q == nil || q.head == nil || q.ready || g.alone[q.of] > 0 {
		return
	}
	if other := g.other(q); other != nil {
		h := other.head
		if h == nil || h.UserID != q.head.UserID || h.KeyID != q.head.KeyID || other.ready || g.alone[other.of] > 0 {
			return
		}
		other.ready = true
	}
	q.ready = true
	user := q.head.UserID
	if _, waits := g.ready[user]; !waits {
		g.users = append(g.users, user)
	}
	g.ready[user] = append(g.ready[user], q)
}

// other returns the other history that has the head of q, nil when none has.
func (g *merge) other(q *sequence) *sequence {
	n := g.pair(q.head.UserID, q.head.KeyID)
	if n.ofUser != n.ofKey {
		return nil
	}
	if q.of.KeyID == "" {
		return g.histories[ofKey(g.account, q.head.KeyID)]
	}
	return g.histories[ofUser(g.account, q.head.UserID)]
}

// take takes the head of a history, and of the other one that has it.
func (g *merge) take(ctx context.Context, q *sequence, fn func(*core.Entry, bool) error) error {
	e, other := *q.head, g.other(q)
	if other != nil && !sameEntry(other.head, &e) {
		return fmt.Errorf("%w: %s and %s have other entries", ErrChanged, nameOf(q.of), nameOf(other.of))
	}
	user, key := ofUser(g.account, e.UserID), ofKey(g.account, e.KeyID)
	if err := fn(&e, g.needs(user) || g.needs(key)); err != nil {
		return err
	}
	for _, of := range []core.CounterID{user, key} {
		if _, kept := g.rest[of]; kept {
			g.rest[of]--
		}
	}
	n := g.pair(e.UserID, e.KeyID)
	if other != nil || q.of == user {
		n.ofUser--
	}
	if other != nil || q.of == key {
		n.ofKey--
	}
	if other == nil {
		without := user
		if q.of == user {
			without = key
		}
		if g.alone[without] > 0 {
			g.alone[without]--
		}
		other = g.histories[without]
	} else if err := other.advance(ctx); err != nil {
		return err
	}
	if err := q.advance(ctx); err != nil {
		return err
	}
	g.look(q)
	g.look(other)
	return nil
}

// needs reports whether the target keeps the next entry of a history.
func (g *merge) needs(of core.CounterID) bool {
	rest, kept := g.rest[of]
	return kept && (g.toCap == 0 || rest <= g.toCap)
}
