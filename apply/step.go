package apply

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/limitkeeper/limitkeeper/core"
)

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
				return nil, cmp.Or(err, errStale)
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
				return nil, cmp.Or(err, errStale)
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
			list = append(list, newMember(digestMember, was.Hint, after.Hint))
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
		return cmp.Or(err, errStale)
	}
	return nil
}

// planID returns the plan with a name in the file, and false if it could not be created.
func (r *run) planID(plan core.Optional[string]) (core.Optional[string], bool) {
	if plan.Value == nil {
		return plan, true
	}
	id, ok := r.planIDs[strings.TrimSpace(*plan.Value)]
	return core.Some(id), ok
}

func (r *run) planName(id string) string { return r.named[id] }

// changed returns the metadata of the file, unset if the stored metadata has the same members.
func changed(want core.Optional[json.RawMessage], had json.RawMessage) core.Optional[json.RawMessage] {
	if want.Value == nil || had == nil {
		return want
	}
	if bytes.Equal(sorted(*want.Value), sorted(had)) {
		return core.Optional[json.RawMessage]{}
	}
	return want
}
