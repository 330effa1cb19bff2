package archive

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"maps"
	"slices"

	"github.com/limitkeeper/limitkeeper/core"
)

// ErrChanged means that a store has changed in a way that an export cannot follow.
var ErrChanged = errors.New("it changed while the store was exported: export again")

// live is the state of the export of a store that changes meanwhile, nil for a store that stays as it is. It keeps the archive valid:
// an import refuses a resource that refers to a missing one, or that has a unique member of another one.
//
// The largest numbers are read first, and resources with larger numbers are left out: they are newer. Plans, users and keys follow in
// this order. So the user of a key is missing only if it was deleted before it was read, and its keys are about to be deleted: such a
// key is left out. A resource that stays may have no valid record: it has a plan or a user that is newer, or it has taken over an
// email, an external id or a value from a resource that is in the archive. Then the export of the account begins again, or ends with
// [ErrChanged] if the account has more records than are held back.
type live struct {
	core.LiveStore
	last  core.Numbers
	plans map[string]bool

	users, keys []int64             // exported ones, sorted: users by ID and keys by Seq
	members     map[uint64]struct{} // hashes of the emails and external ids of the exported users
	digests     map[uint64]struct{} // hashes of the digests of the exported keys
	earlier     map[uint64]struct{} // the same of the earlier accounts
	seed        maphash.Seed
}

// begin begins an account, or begins it again.
func (l *live) begin(last core.Numbers) {
	if l != nil {
		l.last, l.plans, l.users, l.keys = last, map[string]bool{}, nil, nil
		l.members, l.digests = map[uint64]struct{}{}, map[uint64]struct{}{}
	}
}

// end ends the resources of an account.
func (l *live) end() {
	maps.Copy(l.earlier, l.digests)
	l.members, l.digests = nil, nil
}

func (l *live) addPlan(p *core.Plan) {
	if l != nil {
		l.plans[p.ID] = true
	}
}

func (l *live) addUser(u *core.User) error {
	if l == nil {
		return nil
	}
	changed := u.PlanID != "" && !l.plans[u.PlanID]
	for _, f := range u.UniqueFilters() {
		changed = taken(l.members, maphash.Comparable(l.seed, f)) || changed
	}
	if changed {
		return fmt.Errorf("user %d: %w", u.ID, ErrChanged)
	}
	l.users = append(l.users, u.ID)
	return nil
}

// addKey adds a key to the exported ones, and returns false for a key to leave out.
func (l *live) addKey(k *core.Key) (added bool, err error) {
	if l == nil {
		return true, nil
	}
	if k.UserID <= l.last.User && !has(l.users, k.UserID) {
		return false, nil
	}
	changed := k.UserID > l.last.User || k.PlanID != "" && !l.plans[k.PlanID]
	for _, d := range k.Digests() {
		hash := maphash.Comparable(l.seed, d)
		_, earlier := l.earlier[hash]
		changed = taken(l.digests, hash) || earlier || changed
	}
	if changed {
		return false, fmt.Errorf("key %s: %w", k.ID, ErrChanged)
	}
	l.keys = append(l.keys, k.Seq)
	return true, nil
}

// taken adds a hash to a set, and reports whether the set has it already.
func taken(set map[uint64]struct{}, hash uint64) bool {
	n := len(set)
	set[hash] = struct{}{}
	return len(set) == n
}

func (l *live) hasUser(u *core.User) bool { return l == nil || has(l.users, u.ID) }

func (l *live) hasKey(k *core.Key) bool { return l == nil || has(l.keys, k.Seq) }

// has reports whether a sorted list has a number.
func has(sorted []int64, number int64) bool {
	_, found := slices.BinarySearch(sorted, number)
	return found
}

// wholeResources exports an account with its resources. It holds the records of a live store back, and begins again after an
// [ErrChanged].
func (e *export) wholeResources(ctx context.Context, a *core.Account) error {
	if e.live == nil {
		return e.resources(ctx, a)
	}
	to, records := e.to, e.records
	defer func() { e.to = to }()
	for attempt := 1; ; attempt++ {
		h := &held{to: to, room: e.o.held}
		e.to, e.records = h, records
		err := e.resources(ctx, a)
		if errors.Is(err, ErrChanged) && !h.passing && attempt < maxAttempts {
			continue
		}
		if err != nil {
			return err
		}
		e.live.end()
		return h.pass(ctx)
	}
}

// maxAttempts bounds how often the export of an account begins.
const maxAttempts = 100

// held is a sink that holds records back while they fit into its room.
type held struct {
	to      Sink
	room    int
	records []Record
	passing bool // the records pass
}

// Put implements [Sink].
func (h *held) Put(ctx context.Context, r Record) error {
	if h.passing {
		return h.to.Put(ctx, r)
	}
	if h.records = append(h.records, r); len(h.records) > h.room {
		return h.pass(ctx)
	}
	return nil
}

// pass gives the records to the sink behind, and lets later ones pass.
func (h *held) pass(ctx context.Context) error {
	for _, r := range h.records {
		if err := h.to.Put(ctx, r); err != nil {
			return err
		}
	}
	h.records, h.passing = nil, true
	return nil
}
