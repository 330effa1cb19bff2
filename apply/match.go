package apply

import (
	"fmt"
	"slices"
	"strings"

	"github.com/limitkeeper/limitkeeper/core"
)

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

// match finds the resources of the account that the entries of the file mean.
func (c *comparison) match() {
	c.matchPlans()
	c.matchWebhooks()
	c.matchUsers()
	for _, u := range c.file.users {
		c.matchKeys(u)
	}
}

func (c *comparison) matchPlans() {
	stored := map[string][]*core.Plan{}
	for _, p := range c.current.plans {
		stored[p.Name] = append(stored[p.Name], p)
		c.planNames[p.ID] = p.Name
	}
	for _, p := range c.file.plans {
		c.planNamed[p.name] = nil
		if found := unambiguous(c, &p.position, "plan", p.name, stored[p.name], planID); found != nil {
			c.planNamed[p.name] = found
			c.matched[found.ID] = true
		}
	}
	refer := func(at *position, plan core.Optional[string]) {
		if plan.Value == nil {
			return
		}
		name := strings.TrimSpace(*plan.Value)
		if _, known := c.planNamed[name]; known {
			return
		}
		found := stored[name]
		switch {
		case len(found) == 0:
			c.problems.addAt(*at, "plan", "There is no plan %q in the file or in the account", name)
		case c.prune && c.file.hasPlans:
			c.problems.addAt(*at, "plan", "The plan %q is not in the file, so it would be deleted", name)
		default:
			if one := unambiguous(c, at, "plan", name, found, planID); one != nil {
				c.planNamed[name] = one
			}
		}
	}
	for _, u := range c.file.users {
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
func unambiguous[T any](c *comparison, at *position, kind, name string, found []*T, id func(*T) string) *T {
	if len(found) == 1 {
		return found[0]
	}
	if len(found) > 1 {
		const most = 5
		var ids []string
		for _, v := range found[:min(len(found), most)] {
			ids = append(ids, id(v))
		}
		c.problems.addAt(*at, "", "The account has %d %ss with the name %q: %s. Rename or delete all but one",
			len(found), kind, name, strings.Join(ids, ", "))
	}
	return nil
}

// matchUsers finds users by external id first, then by email, and then by name among the rest. A user that no external id
// finds is looked for by its email, and gets the external id if it has none.
func (c *comparison) matchUsers() {
	for _, u := range c.file.users {
		c.claim(u, c.holders[core.UserFilter{ExternalID: u.patch.ExternalID.OrZero()}])
	}
	for _, u := range c.file.users {
		found := c.holders[core.UserFilter{Email: u.email()}]
		if c.userOf[u] == nil && found != nil && (u.patch.ExternalID.Value == nil || found.ExternalID == "") {
			c.claim(u, found)
		}
	}
	byName := map[string][]*core.User{}
	for _, u := range c.users {
		if c.claimed[u] == nil {
			byName[u.Name] = append(byName[u.Name], u)
		}
	}
	for _, u := range c.file.users {
		member, value := u.identity()
		if member != "name" {
			continue
		}
		c.claim(u, unambiguous(c, &u.position, "user", value, byName[value], userID))
	}
}

// claim records that an entry means a user. Two entries for one user are a problem.
func (c *comparison) claim(u *user, found *core.User) {
	if found == nil {
		return
	}
	if other := c.claimed[found]; other != nil {
		c.problems.addAt(u.position, "", "This is the user %d, and so is the user in line %d", found.ID, other.line)
		return
	}
	c.userOf[u], c.claimed[found] = found, u
}

// ordered returns the users of the file. A user that gives up an email or external id comes before the user that gets it,
// unless they exchange theirs.
func (c *comparison) ordered() (users []*user) {
	seen := map[*user]bool{}
	var visit func(*user)
	visit = func(u *user) {
		if seen[u] {
			return
		}
		seen[u] = true
		for _, f := range []core.UserFilter{{Email: u.email()}, {ExternalID: u.patch.ExternalID.OrZero()}} {
			if other := c.claimed[c.holders[f]]; other != nil {
				visit(other)
			}
		}
		users = append(users, u)
	}
	for _, u := range c.file.users {
		visit(u)
	}
	return users
}

func (c *comparison) matchKeys(u *user) {
	stored := map[string][]*core.Key{}
	if found := c.userOf[u]; found != nil {
		for _, k := range c.current.keys[found.ID] {
			stored[k.Name] = append(stored[k.Name], k)
		}
	}
	for _, k := range u.keys {
		if found := unambiguous(c, &k.position, "key", k.name, stored[k.name], keyID); found != nil {
			c.keyOf[k] = found
			c.matched[found.ID] = true
		}
		if d := k.patch.Digest; d != nil && (len(stored[k.name]) == 0 || *d != stored[k.name][0].Digest) {
			c.newDigests[*d] = k
		}
	}
}
