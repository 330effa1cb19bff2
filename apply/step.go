package apply

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/limitkeeper/limitkeeper/core"
)

// steps returns the steps that make the account equal to the file. Keys and users are deleted before others are created,
// and plans when nothing has them. A user loses its plan after its keys have got their own.
func (c *comparison) steps() (steps []*step) {
	if c.prune {
		steps = c.deletions()
	}
	if c.file.hasPrices && !c.file.brokenPrices {
		steps = append(steps, c.pricesStep())
	}
	steps = append(steps, c.webhookSteps()...)
	for _, p := range c.file.plans {
		steps = append(steps, c.planStep(p))
	}
	for _, u := range c.ordered() {
		of := []*step{c.userStep(u)}
		for _, k := range u.keys {
			of = append(of, c.keyStep(u, k))
		}
		if c.userOf[u] != nil && u.plan.Set && u.plan.Value == nil {
			of = append(of[1:], of[0])
		}
		steps = append(steps, of...)
	}
	if !c.prune || !c.file.hasPlans {
		return steps
	}
	for _, p := range c.current.plans {
		if !c.matched[p.ID] {
			steps = append(steps, deletion(Change{Kind: "plan", Name: p.Name}, func() error {
				if err := stillAs(c.Plan, p.ID, p, planTime); err != nil {
					return err
				}
				return c.DeletePlan(p.ID)
			}))
		}
	}
	return steps
}

// maxDeletions bounds the users and keys that one run deletes: 240,000 keys of the embedded store take 700 MB, and stall others for 2 s.
const maxDeletions = 50_000

// deletions returns the steps that delete the users and keys that are not in the file. It adds a problem if they are more than maxDeletions.
func (c *comparison) deletions() (steps []*step) {
	var largest *core.User // the deleted user with the most keys
	most := 0              // the number of its keys
	deleteKeys := func(u *core.User) int {
		before := len(steps)
		for _, k := range c.current.keys[u.ID] {
			if c.matched[k.ID] {
				continue
			}
			steps = append(steps, deletion(Change{Kind: "key", Name: k.Name, User: u.Name}, func() error {
				if err := stillAs(c.Key, k.ID, k, keyTime); err != nil {
					return err
				}
				return c.DeleteKey(k.ID)
			}))
		}
		return len(steps) - before
	}
	for _, u := range c.file.users {
		if found := c.userOf[u]; found != nil && u.hasKeys {
			deleteKeys(found)
		}
	}
	for _, u := range c.current.users {
		if !c.file.hasUsers || c.claimed[u] != nil {
			continue
		}
		if n := deleteKeys(u); n > most {
			largest, most = u, n
		}
		steps = append(steps, deletion(Change{Kind: "user", Name: u.Name, Email: u.Email}, func() error {
			if err := stillAs(c.User, u.ID, u, userTime); err != nil {
				return err
			}
			if err := c.sameKeys(u.ID); err != nil {
				return err
			}
			return c.DeleteUser(u.ID)
		}))
	}
	if len(steps) > maxDeletions {
		text := fmt.Sprintf("This deletes %d users and keys, and one run at most %d: keep some of them in the file, or delete some with the API first", len(steps), maxDeletions)
		if most > 1 {
			text += fmt.Sprintf(", such as the user %q with %d keys: DELETE /functions/v1/users/%d", largest.Name, most, largest.ID)
		}
		c.problems.add(0, "", text)
	}
	return steps
}

func deletion(change Change, do func() error) *step {
	change.Action = "delete"
	return &step{position{path: fmt.Sprintf("%s %q", change.Kind, change.Name)}, func() (*Change, error) { return &change, do() }}
}

// pricesStep replaces the list of prices. An empty list of the file removes the prices only with prune.
func (c *comparison) pricesStep() *step {
	was, want := c.current.prices, c.file.rules
	return &step{c.file.position, func() (*Change, error) {
		if slices.EqualFunc(was.Rules, want, core.PriceRule.Equal) || len(want) == 0 && !c.prune {
			return nil, nil
		}
		now, err := c.Prices()
		if err != nil || !now.UpdatedAt.Equal(was.UpdatedAt) {
			return nil, cmp.Or(err, errStale)
		}
		if _, err := c.SetPrices(want); err != nil {
			return nil, err
		}
		change := &Change{Action: "create", Kind: "prices", Name: c.file.name}
		switch {
		case len(want) == 0:
			change.Action = "delete"
		case len(was.Rules) > 0:
			change.update([]Member{newMember("rules", was.Rules, want)})
		}
		return change, nil
	}}
}

func (c *comparison) planStep(p *plan) *step {
	was := c.planNamed[p.name]
	return &step{p.position, func() (*Change, error) {
		change := &Change{Action: "create", Kind: "plan", Name: p.name}
		if was == nil {
			if _, n, err := c.Before().Plans(core.Page{Number: 1, Size: 1}); err != nil || n != len(c.current.plans) {
				return nil, cmp.Or(err, errStale)
			}
			pl, err := c.CreatePlan(p.patch)
			if err != nil {
				for _, missing := range p.patch.Missing() { // err is the first
					_ = c.problems.refuse(p.position, missing)
				}
				return nil, err
			}
			c.planIDs[p.name], c.planNames[pl.ID] = pl.ID, pl.Name
			return change, nil
		}
		if !core.PlanMembers.Changes(p.patch, was) {
			return nil, nil
		}
		if err := stillAs(c.Plan, was.ID, was, planTime); err != nil {
			return nil, err
		}
		pl, err := c.UpdatePlan(was.ID, p.patch)
		if err != nil {
			return nil, err
		}
		return change.update(differences(&core.PlanMembers, was, pl, nil)), nil
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

func (c *comparison) userStep(u *user) *step {
	was := c.userOf[u]
	return &step{u.position, func() (*Change, error) {
		patch, known := u.patch, false
		if patch.PlanID, known = c.planID(u.plan); !known {
			return nil, nil // in a preview, the problem of the plan is known
		}
		if was == nil {
			if n, err := c.Before().CountUsers(core.UserFilter{}); err != nil || n != c.current.allUsers {
				return nil, cmp.Or(err, errStale)
			}
			made, err := c.CreateUser(patch)
			if err != nil {
				return nil, err
			}
			c.userIDs[u] = made.ID
			return &Change{Action: "create", Kind: "user", Name: made.Name, Email: made.Email}, nil
		}
		if patch.Metadata = changed(patch.Metadata, was.Metadata); !core.UserMembers.Changes(patch, was) {
			return nil, nil
		}
		if err := stillAs(c.User, was.ID, was, userTime); err != nil {
			return nil, err
		}
		after, err := c.UpdateUser(was.ID, patch)
		if err != nil {
			return nil, err
		}
		change := &Change{Kind: "user", Name: was.Name, Email: was.Email}
		return change.update(differences(&core.UserMembers, was, after, c.planName)), nil
	}}
}

func (c *comparison) keyStep(u *user, k *key) *step {
	was := c.keyOf[k]
	return &step{k.position, func() (*Change, error) {
		patch, known := k.patch, false
		patch.PlanID, known = c.planID(k.plan)
		id, made := c.userIDs[u]
		if !known || !made {
			return nil, nil // in a preview, the problem of the plan or of the user is known
		}
		change := &Change{Action: "create", Kind: "key", Name: k.name, User: c.userName(u)}
		if was == nil {
			patch.UserID = &id
			return c.create(change, patch, c.userOf[u])
		}
		patch.Metadata = changed(patch.Metadata, was.Metadata)
		if !core.KeyMembers.Changes(patch, was) && (patch.Digest == nil || *patch.Digest == was.Digest) {
			return nil, nil
		}
		if err := stillAs(c.Key, was.ID, was, keyTime); err != nil {
			return nil, err
		}
		after, err := c.UpdateKey(was.ID, patch)
		if err != nil {
			return nil, err
		}
		list := differences(&core.KeyMembers, was, after, c.planName)
		if was.Digest != after.Digest {
			list = append(list, newMember(digestMember, was.Hint, after.Hint))
		}
		return change.update(list), nil
	}}
}

// userName returns the name that the user of an entry has afterwards.
func (c *comparison) userName(u *user) string {
	if u.patch.Name != nil {
		return *u.patch.Name
	}
	return c.userOf[u].Name // a new user has a name
}

// create creates a key. u is its user, nil if the user is new.
func (c *comparison) create(change *Change, patch core.KeyPatch, u *core.User) (*Change, error) {
	if u != nil {
		if err := c.sameKeys(u.ID); err != nil {
			return nil, err
		}
	}
	k, secret, err := c.CreateKey(patch)
	if err != nil {
		return nil, err
	}
	if secret != "" {
		c.made = append(c.made, NewKey{k.ID, k.Name, change.User, k.UserID, secret})
	}
	return change, nil
}

// sameKeys returns errStale unless a user has as many keys as it had when the account was read.
func (c *comparison) sameKeys(user int64) error {
	n, err := c.Before().CountKeys(core.KeyFilter{UserID: user})
	if err != nil || n != len(c.current.keys[user]) {
		return cmp.Or(err, errStale)
	}
	return nil
}

// planID returns the plan with a name in the file, and false if it could not be created.
func (c *comparison) planID(plan core.Optional[string]) (core.Optional[string], bool) {
	if plan.Value == nil {
		return plan, true
	}
	id, ok := c.planIDs[strings.TrimSpace(*plan.Value)]
	return core.Some(id), ok
}

func (c *comparison) planName(id string) string { return c.planNames[id] }

// changed returns the metadata of the file, unset if the stored metadata has the same members in another order. Numbers keep their digits.
func changed(want core.Optional[json.RawMessage], had json.RawMessage) core.Optional[json.RawMessage] {
	if want.Value == nil || had == nil {
		return want
	}
	is, was := jsontext.Value(bytes.Clone(*want.Value)), jsontext.Value(bytes.Clone(had))
	for _, v := range []*jsontext.Value{&is, &was} {
		if v.Canonicalize(jsontext.CanonicalizeRawInts(false), jsontext.CanonicalizeRawFloats(false)) != nil {
			return want // core refuses it
		}
	}
	if bytes.Equal(is, was) {
		return core.Optional[json.RawMessage]{}
	}
	return want
}
