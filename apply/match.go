package apply

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/document"
)

// match finds the resources of an account that the entries of a file mean.
type match struct {
	c        *comparison
	prune    bool
	problems *Problems

	plans   map[string]*core.Plan // by the names that the file defines or uses; nil for new plans
	users   map[*user]*core.User  // nil for new users
	keys    map[*key]*core.Key    // nil for new keys
	claimed map[int64]*user       // the entries in users, by the ids of the users
	matched map[string]bool       // the ids of the plans that the file defines, and of the keys in keys
	names   map[string]string     // of the stored plans, by id
}

// mayChange returns a function that reports whether the file may mean, or with prune delete, a user.
func (a *account) mayChange(prune bool) func(*core.User) bool {
	if prune && a.hasUsers {
		return func(*core.User) bool { return true }
	}
	names, filters := map[string]bool{}, map[core.UserFilter]bool{}
	for _, u := range a.users {
		if u.patch.Name != nil {
			names[*u.patch.Name] = true
		}
		filters[core.UserFilter{Email: u.email()}] = true
		filters[core.UserFilter{ExternalID: u.patch.ExternalID.OrZero()}] = true
	}
	return func(u *core.User) bool {
		return names[u.Name] || slices.ContainsFunc(u.UniqueFilters(), func(f core.UserFilter) bool { return filters[f] })
	}
}

func newMatch(c *comparison, prune bool, problems *Problems) *match {
	m := &match{c: c, prune: prune, problems: problems, plans: map[string]*core.Plan{}, users: map[*user]*core.User{},
		keys: map[*key]*core.Key{}, claimed: map[int64]*user{}, matched: map[string]bool{}, names: map[string]string{}}
	m.matchPlans()
	m.matchUsers()
	for _, u := range c.file.users {
		m.matchKeys(u)
	}
	return m
}

func (m *match) matchPlans() {
	stored := map[string][]*core.Plan{}
	for _, p := range m.c.snapshot.plans {
		stored[p.Name] = append(stored[p.Name], p)
		m.names[p.ID] = p.Name
	}
	for _, p := range m.c.file.plans {
		m.plans[p.name] = nil
		if found := unambiguous(m, &p.position, "plan", p.name, stored[p.name], planID); found != nil {
			m.plans[p.name] = found
			m.matched[found.ID] = true
		}
	}
	refer := func(at *position, plan core.Optional[string]) {
		if plan.Value == nil {
			return
		}
		name := strings.TrimSpace(*plan.Value)
		if _, known := m.plans[name]; known {
			return
		}
		found := stored[name]
		switch {
		case len(found) == 0:
			m.problems.add(at.lineOf("plan"), document.Join(at.path, "plan"), fmt.Sprintf("There is no plan %q in the file or in the account", name))
		case m.prune && m.c.file.hasPlans:
			m.problems.add(at.lineOf("plan"), document.Join(at.path, "plan"), fmt.Sprintf("The plan %q is not in the file, so it would be deleted", name))
		default:
			if one := unambiguous(m, at, "plan", name, found, planID); one != nil {
				m.plans[name] = one
			}
		}
	}
	for _, u := range m.c.file.users {
		refer(&u.position, u.plan)
		for _, k := range u.keys {
			refer(&k.position, k.plan)
		}
	}
}

func planID(p *core.Plan) string { return p.ID }
func userID(u *core.User) string { return fmt.Sprint(u.ID) }
func keyID(k *core.Key) string   { return k.ID }

// unambiguous returns the only resource with a name, nil for none. It adds a problem if there are several. id returns the id of one.
func unambiguous[T any](m *match, at *position, kind, name string, found []*T, id func(*T) string) *T {
	if len(found) == 1 {
		return found[0]
	}
	if len(found) > 1 {
		const most = 5
		var ids []string
		for _, v := range found[:min(len(found), most)] {
			ids = append(ids, id(v))
		}
		m.problems.add(at.line, at.path, fmt.Sprintf("The account has %d %ss with the name %q: %s. Rename or delete all but one",
			len(found), kind, name, strings.Join(ids, ", ")))
	}
	return nil
}

// matchUsers finds users by external id first, then by email, and then by name among the rest. A user that no external id
// finds is looked for by its email, and gets the external id if it has none.
func (m *match) matchUsers() {
	s := m.c.snapshot
	holder := func(f core.UserFilter) *core.User {
		if f == (core.UserFilter{}) {
			return nil
		}
		return s.userByID[s.holders[f]]
	}
	for _, u := range m.c.file.users {
		m.claim(u, holder(core.UserFilter{ExternalID: u.patch.ExternalID.OrZero()}))
	}
	for _, u := range m.c.file.users {
		found := holder(core.UserFilter{Email: u.email()})
		if m.users[u] == nil && found != nil && (u.patch.ExternalID.Value == nil || found.ExternalID == "") {
			m.claim(u, found)
		}
	}
	byName := map[string][]*core.User{}
	for _, u := range s.users {
		if m.claimed[u.ID] == nil {
			byName[u.Name] = append(byName[u.Name], u)
		}
	}
	for _, u := range m.c.file.users {
		member, value := u.identity()
		if member != "name" {
			continue
		}
		m.claim(u, unambiguous(m, &u.position, "user", value, byName[value], userID))
	}
}

// claim records that an entry means a user. Two entries for one user are a problem.
func (m *match) claim(u *user, found *core.User) {
	if found == nil {
		return
	}
	if other := m.claimed[found.ID]; other != nil {
		m.problems.add(u.line, u.path, fmt.Sprintf("This is the user %d, and so is the user in line %d", found.ID, other.line))
		return
	}
	m.users[u], m.claimed[found.ID] = found, u
}

// ordered returns the users of the file. A user that gives up an email or external id comes before the user that gets it,
// unless they exchange theirs.
func (m *match) ordered() (users []*user) {
	s, seen := m.c.snapshot, map[*user]bool{}
	var visit func(*user)
	visit = func(u *user) {
		if seen[u] {
			return
		}
		seen[u] = true
		for _, f := range []core.UserFilter{{Email: u.email()}, {ExternalID: u.patch.ExternalID.OrZero()}} {
			if other := m.claimed[s.holders[f]]; other != nil {
				visit(other)
			}
		}
		users = append(users, u)
	}
	for _, u := range m.c.file.users {
		visit(u)
	}
	return users
}

func (m *match) matchKeys(u *user) {
	stored := map[string][]*core.Key{}
	if found := m.users[u]; found != nil {
		for _, k := range m.c.snapshot.keys[found.ID] {
			stored[k.Name] = append(stored[k.Name], k)
		}
	}
	for _, k := range u.keys {
		if found := unambiguous(m, &k.position, "key", k.name, stored[k.name], keyID); found != nil {
			m.keys[k] = found
			m.matched[found.ID] = true
		}
		if d := k.patch.Digest; d != nil && (len(stored[k.name]) == 0 || *d != stored[k.name][0].Digest) {
			m.c.newDigests[*d] = k
		}
	}
}

// run returns a run of the steps in a batch.
func (m *match) run(b *core.Batch) *run {
	r := &run{Batch: b, c: m.c, planIDs: map[string]string{}, userIDs: map[*user]int64{}, named: maps.Clone(m.names)}
	for name, p := range m.plans {
		if p != nil {
			r.planIDs[name] = p.ID
		}
	}
	for u, found := range m.users {
		r.userIDs[u] = found.ID
	}
	return r
}
