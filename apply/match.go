package apply

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

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
		if found := stored[p.name]; m.unambiguous(&p.position, "plan", p.name, idsOf(found, func(p *core.Plan) string { return p.ID })) {
			m.plans[p.name] = found[0]
			m.matched[found[0].ID] = true
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
		case m.unambiguous(at, "plan", name, idsOf(found, func(p *core.Plan) string { return p.ID })):
			m.plans[name] = found[0]
		}
	}
	for _, u := range m.c.file.users {
		refer(&u.position, u.plan)
		for _, k := range u.keys {
			refer(&k.position, k.plan)
		}
	}
}

func idsOf[T any](list []T, id func(T) string) []string {
	ids := make([]string, len(list))
	for i, v := range list {
		ids[i] = id(v)
	}
	return ids
}

// unambiguous reports whether there is one resource with a name. It adds a problem if there are several.
func (m *match) unambiguous(at *position, kind, name string, ids []string) bool {
	if len(ids) > 1 {
		const most = 5
		m.problems.add(at.line, at.path, fmt.Sprintf("The account has %d %ss with the name %q: %s. Rename or delete all but one",
			len(ids), kind, name, strings.Join(ids[:min(len(ids), most)], ", ")))
	}
	return len(ids) == 1
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
		if found := byName[value]; m.unambiguous(&u.position, "user", value, idsOf(found, func(u *core.User) string { return fmt.Sprint(u.ID) })) {
			m.claim(u, found[0])
		}
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
		found := stored[k.name]
		if m.unambiguous(&k.position, "key", k.name, idsOf(found, func(k *core.Key) string { return k.ID })) {
			m.keys[k] = found[0]
			m.matched[found[0].ID] = true
		}
		if d := k.patch.Digest; d != nil && (len(found) == 0 || *d != found[0].Digest) {
			m.c.newDigests[*d] = k
		}
	}
}

// run returns a run of the steps in a batch.
func (m *match) run(b *core.Batch) *run {
	r := &run{Batch: b, c: m.c, planIDs: map[string]string{}, userIDs: map[*user]int64{}, named: map[string]string{}}
	for name, p := range m.plans {
		if p != nil {
			r.planIDs[name] = p.ID
		}
	}
	for u, found := range m.users {
		r.userIDs[u] = found.ID
	}
	for id, name := range m.names {
		r.named[id] = name
	}
	return r
}

// steps returns the steps that make the account equal to the file. Keys and users are deleted before others are created,
// and plans when nothing has them. A user loses its plan after its keys have got their own.
func (m *match) steps() (steps []*step) {
	if m.prune {
		steps = m.deletions()
	}
	for _, p := range m.c.file.plans {
		steps = append(steps, m.planStep(p))
	}
	for _, u := range m.ordered() {
		of := []*step{m.userStep(u)}
		for _, k := range u.keys {
			of = append(of, m.keyStep(u, k))
		}
		if m.users[u] != nil && u.plan.Set && u.plan.Value == nil {
			of = append(of[1:], of[0])
		}
		steps = append(steps, of...)
	}
	if !m.prune || !m.c.file.hasPlans {
		return steps
	}
	for _, p := range m.c.snapshot.plans {
		if !m.matched[p.ID] {
			steps = append(steps, m.deletion(Change{Kind: "plan", Name: p.Name}, func(r *run) error {
				if err := stillAs(r.Plan, p.ID, p, planTime); err != nil {
					return err
				}
				return r.DeletePlan(p.ID)
			}))
		}
	}
	return steps
}

// maxDeletions bounds the users and keys that one run deletes: 240,000 keys of the embedded store take 700 MB, and stall others for 2 s.
const maxDeletions = 50_000

// deletions returns the steps that delete the users and keys that are not in the file. It adds a problem if they are more than maxDeletions.
func (m *match) deletions() (steps []*step) {
	var largest *core.User // the deleted user with the most keys
	most := 0              // the number of its keys
	deleteKeys := func(u *core.User) int {
		before := len(steps)
		for _, k := range m.c.snapshot.keys[u.ID] {
			if m.matched[k.ID] {
				continue
			}
			steps = append(steps, m.deletion(Change{Kind: "key", Name: k.Name, User: u.Name}, func(r *run) error {
				if err := stillAs(r.Key, k.ID, k, keyTime); err != nil {
					return err
				}
				return r.DeleteKey(k.ID)
			}))
		}
		return len(steps) - before
	}
	for _, u := range m.c.file.users {
		if found := m.users[u]; found != nil && u.hasKeys {
			deleteKeys(found)
		}
	}
	for _, u := range m.c.snapshot.users {
		if !m.c.file.hasUsers || m.claimed[u.ID] != nil {
			continue
		}
		if n := deleteKeys(u); n > most {
			largest, most = u, n
		}
		steps = append(steps, m.deletion(Change{Kind: "user", Name: u.Name, Email: u.Email}, func(r *run) error {
			if err := stillAs(r.User, u.ID, u, userTime); err != nil {
				return err
			}
			if err := r.sameKeys(u.ID); err != nil {
				return err
			}
			return r.DeleteUser(u.ID)
		}))
	}
	if len(steps) > maxDeletions {
		text := fmt.Sprintf("This deletes %d users and keys, and one run at most %d: keep some of them in the file, or delete some with the API first", len(steps), maxDeletions)
		if most > 1 {
			text += fmt.Sprintf(", such as the user %q with %d keys: DELETE /functions/v1/users/%d", largest.Name, most, largest.ID)
		}
		m.problems.add(0, "", text)
	}
	return steps
}

func (m *match) deletion(c Change, do func(*run) error) *step {
	c.Action = "delete"
	return &step{position{path: fmt.Sprintf("%s %q", c.Kind, c.Name)}, func(r *run) (*Change, error) { return &c, do(r) }}
}

func (m *match) planStep(p *plan) *step {
	was := m.plans[p.name]
	return &step{p.position, func(r *run) (*Change, error) {
		c := &Change{Action: "create", Kind: "plan", Name: p.name}
		if was == nil {
			if _, n, err := r.Before().Plans(core.Page{Number: 1, Size: 1}); err != nil || n != len(m.c.snapshot.plans) {
				return nil, orStale(err)
			}
			pl, err := r.CreatePlan(p.patch)
			if err != nil {
				for _, missing := range p.patch.Missing() { // err is the first
					_ = m.problems.refuse(p.position, missing)
				}
				return nil, err
			}
			r.planIDs[p.name], r.named[pl.ID] = pl.ID, pl.Name
			return c, nil
		}
		if err := stillAs(r.Plan, was.ID, was, planTime); err != nil {
			return nil, err
		}
		pl, err := r.UpdatePlan(was.ID, p.patch)
		if err != nil {
			return nil, err
		}
		return c.update(differences(&core.PlanMembers, was, pl, nil)), nil
	}}
}

// update makes the change an update of members, nil without members.
func (c *Change) update(members []Member) *Change {
	if len(members) == 0 {
		return nil
	}
	c.Action, c.Members = "update", members
	return c
}

func (m *match) userStep(u *user) *step {
	was := m.users[u]
	return &step{u.position, func(r *run) (*Change, error) {
		patch, known := u.patch, false
		if patch.PlanID, known = r.planID(u.plan); !known {
			return nil, nil // in a preview, the problem of the plan is known
		}
		if was == nil {
			if n, err := r.Before().CountUsers(core.UserFilter{}); err != nil || n != m.c.snapshot.allUsers {
				return nil, orStale(err)
			}
			made, err := r.CreateUser(patch)
			if err != nil {
				return nil, err
			}
			r.userIDs[u] = made.ID
			return &Change{Action: "create", Kind: "user", Name: made.Name, Email: made.Email}, nil
		}
		if err := stillAs(r.User, was.ID, was, userTime); err != nil {
			return nil, err
		}
		patch.Metadata = changed(patch.Metadata, was.Metadata)
		after, err := r.UpdateUser(was.ID, patch)
		if err != nil {
			return nil, err
		}
		c := &Change{Kind: "user", Name: was.Name, Email: was.Email}
		return c.update(differences(&core.UserMembers, was, after, r.planName)), nil
	}}
}

func (m *match) keyStep(u *user, k *key) *step {
	was := m.keys[k]
	return &step{k.position, func(r *run) (*Change, error) {
		patch, known := k.patch, false
		patch.PlanID, known = r.planID(k.plan)
		id, made := r.userIDs[u]
		if !known || !made {
			return nil, nil // in a preview, the problem of the plan or of the user is known
		}
		c := &Change{Action: "create", Kind: "key", Name: k.name, User: m.userName(u)}
		if was == nil {
			patch.UserID = &id
			return r.create(c, patch, m.users[u])
		}
		if err := stillAs(r.Key, was.ID, was, keyTime); err != nil {
			return nil, err
		}
		patch.Metadata = changed(patch.Metadata, was.Metadata)
		after, err := r.UpdateKey(was.ID, patch)
		if err != nil {
			return nil, err
		}
		list := differences(&core.KeyMembers, was, after, r.planName)
		if was.Digest != after.Digest {
			list = append(list, Member{digestMember, was.Hint, after.Hint})
		}
		return c.update(list), nil
	}}
}

// userName returns the name that the user of an entry has afterwards.
func (m *match) userName(u *user) string {
	if u.patch.Name != nil {
		return *u.patch.Name
	}
	return m.users[u].Name // a new user has a name
}

// create creates a key. u is its user, nil if the user is new.
func (r *run) create(c *Change, patch core.KeyPatch, u *core.User) (*Change, error) {
	if u != nil {
		if err := r.sameKeys(u.ID); err != nil {
			return nil, err
		}
	}
	k, secret, err := r.CreateKey(patch)
	if err != nil {
		return nil, err
	}
	if secret != "" {
		r.made = append(r.made, NewKey{k.ID, k.Name, c.User, k.UserID, secret})
	}
	return c, nil
}

// sameKeys returns errStale unless a user has as many keys as it had when the account was read.
func (r *run) sameKeys(user int64) error {
	n, err := r.Before().CountKeys(core.KeyFilter{UserID: user})
	if err != nil || n != len(r.c.snapshot.keys[user]) {
		return orStale(err)
	}
	return nil
}

func orStale(err error) error {
	if err == nil {
		return errStale
	}
	return err
}

// planID returns the plan with a name in the file, and false if it could not be created.
func (r *run) planID(plan core.Optional[string]) (core.Optional[string], bool) {
	if plan.Value == nil {
		return plan, true
	}
	id, ok := r.planIDs[strings.TrimSpace(*plan.Value)]
	return core.Some(id), ok
}

// planName returns the name of a plan.
func (r *run) planName(id string) string { return r.named[id] }

// changed returns the metadata of the file, unset if the stored metadata has the same members.
func changed(want core.Optional[json.RawMessage], had json.RawMessage) core.Optional[json.RawMessage] {
	if want.Value == nil || had == nil {
		return want
	}
	wanted, stored := jsontext.Value(bytes.Clone(*want.Value)), jsontext.Value(bytes.Clone(had))
	if wanted.Canonicalize() == nil && stored.Canonicalize() == nil && bytes.Equal(wanted, stored) {
		return core.Optional[json.RawMessage]{}
	}
	return want
}
