package migrate

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"sync"
)

// tangle is who is entangled with whom: users by the keys that were of one and are of
// another, or that both have used before they were deleted.
type tangle struct {
	mu     sync.Mutex        // guards what follows
	parent map[string]string // of users and keys, towards one for each group
	users  map[int64]state
	todo   []int64 // users that are unknown yet
}

// state is what is known of a user.
type state uint8

const (
	unknown state = iota
	surveyed
	deleted
)

func newTangle() *tangle { return &tangle{parent: map[string]string{}, users: map[int64]state{}} }

func userNode(id int64) string { return "user " + strconv.FormatInt(id, 10) }
func keyNode(id string) string { return "key " + id }

// add notes what the survey of a user has found.
func (t *tangle) add(s *survey) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.users[s.user] = surveyed
	for id, user := range s.strangers {
		t.joinLocked(userNode(s.user), keyNode(id))
		if user != 0 {
			t.meetLocked(user, id)
		}
	}
	for _, k := range s.moved {
		t.joinLocked(userNode(s.user), keyNode(k.id))
		for user := range k.byUser {
			t.meetLocked(user, k.id)
		}
	}
}

// meetLocked notes that a user has to do with a key.
func (t *tangle) meetLocked(user int64, key string) {
	t.joinLocked(userNode(user), keyNode(key))
	if _, met := t.users[user]; !met {
		t.users[user] = unknown
		t.todo = append(t.todo, user)
	}
}

// unknown returns a user that is still to be surveyed.
func (t *tangle) unknown() (int64, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for len(t.todo) > 0 {
		id := t.todo[len(t.todo)-1]
		t.todo = t.todo[:len(t.todo)-1]
		if t.users[id] == unknown {
			return id, true
		}
	}
	return 0, false
}

// gone notes that a user was deleted.
func (t *tangle) gone(id int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.users[id] = deleted
}

// joinLocked makes the groups of two one.
func (t *tangle) joinLocked(a, b string) {
	if x, y := t.rootLocked(a), t.rootLocked(b); x != y {
		t.parent[x] = y
	}
}

func (t *tangle) rootLocked(a string) string {
	root := a
	for t.parent[root] != "" {
		root = t.parent[root]
	}
	for a != root {
		a, t.parent[a] = t.parent[a], root
	}
	return root
}

// groups returns the users that are entangled with each other, but those who were deleted.
func (t *tangle) groups() [][]int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	byRoot := map[string][]int64{}
	for id, s := range t.users {
		if s == surveyed {
			root := t.rootLocked(userNode(id))
			byRoot[root] = append(byRoot[root], id)
		}
	}
	for _, users := range byRoot {
		slices.Sort(users)
	}
	return slices.SortedFunc(maps.Values(byRoot), func(a, b []int64) int { return cmp.Compare(a[0], b[0]) })
}
