package archive

import (
	"context"
	"errors"
	"fmt"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/secrets"
)

func (c *checker) putAccount(ctx context.Context, a *Account) error {
	c.endAccount()
	c.account, c.kind, c.hasOwner = a, 0, false
	c.plans, c.planSeq, c.userID, c.keySeq = map[string]bool{}, 0, 0, 0
	c.unique, c.asKeys = map[core.UserFilter]bool{}, map[secrets.Digest]int64{}
	c.audit, c.auditSeq = [2]auditSize{}, 0
	c.owners, c.anchors = map[core.CounterID]int{}, anchors{}
	c.webhooks, c.webhookSeq, c.events, c.eventSeq = map[string]bool{}, 0, map[string]bool{}, 0
	switch {
	case !isID(a.ID):
		c.problem("account: the id must be 1 to 64 letters, digits, _ or -")
	case c.ids[a.ID] || c.names[a.Name]:
		c.problem("account: a second account %q (%s)", a.Name, a.ID)
	case a.Import != nil || a.Deleting:
		c.problem("account: import and deleting are not for archives")
	}
	c.rules("account", a.ID, a.Check())
	c.ids[a.ID], c.names[a.Name] = true, true
	return c.checkTarget(ctx, a)
}

// checkTarget checks that the target has no account with the id or the name, or only one whose import has not finished.
func (c *checker) checkTarget(ctx context.Context, a *Account) error {
	if c.accounts == 0 {
		return nil
	}
	byName, err := c.target.AccountByName(ctx, a.Name)
	if err != nil && !errors.Is(err, core.ErrAccountNotFound) {
		return err
	}
	byID, err := c.target.Account(ctx, a.ID)
	if err != nil && !errors.Is(err, core.ErrAccountNotFound) {
		return err
	}
	switch {
	case byName == nil && byID == nil:
	case byID != nil && byID.Deleting:
		c.problem("account: the store is deleting the account %s: import it when limitkeeper account list no longer shows that account", a.ID)
	case byName != nil && byName.ID != a.ID:
		c.problem("account: the store has another account %q: its id is %s, and %s in the archive. %s", a.Name, byName.ID, a.ID, c.advice())
	case byID.Name != a.Name:
		c.problem("account: the store has the account %s with the name %q, and not %q", a.ID, byID.Name, a.Name)
	case byID.Import == nil:
		c.problem("account: the store already has the account %q. %s", a.Name, c.advice())
	default:
		c.imported = append(c.imported, byID)
	}
	return nil
}

// advice says what to do when the target has an account of the archive.
func (c *checker) advice() string {
	if c.emptyOnly {
		return "Restore into an empty store"
	}
	return "An import only adds accounts: choose others with --account, or another store"
}

// endAccount checks an account as a whole.
func (c *checker) endAccount() {
	if c.account == nil {
		return
	}
	c.endUsage()
	a := c.account
	if !c.hasOwner {
		c.problem("the account %q before has no owner's key", a.Name)
	}
	if !isNumber(a.Last.User, a.Last.Plan, a.Last.Key) {
		c.problem("the account %q before: the numbers of last are from 0 to %d", a.Name, int64(maxNumber))
	}
	if a.Last.User < c.userID || a.Last.Plan < c.planSeq || a.Last.Key < c.keySeq {
		c.problem("the account %q before: last is %+v, less than the numbers of its resources", a.Name, a.Last)
	}
}

func (c *checker) putOwnerKey(ctx context.Context, k *core.OwnerKey) error {
	switch {
	case !c.belongs(k.AccountID):
		return nil
	case !isID(k.ID) || k.Digest == secrets.Digest{}:
		c.problem("owner_key: an id of letters and digits and a digest are required")
		return nil
	case c.ownerKeys[k.Digest] || c.ids[k.ID]:
		c.problem("owner_key %s: a second one with this id or digest", k.ID)
	}
	c.rules("owner_key", k.ID, k.Check())
	c.hasOwner, c.ownerKeys[k.Digest], c.ids[k.ID] = true, true, true
	if c.accounts == 0 {
		return nil
	}
	had, err := c.target.OwnerKeyByDigest(ctx, k.Digest)
	if errors.Is(err, core.ErrOwnerKeyNotFound) {
		return nil
	}
	if err == nil && had.AccountID != k.AccountID {
		c.problem("owner_key %s: the store has this key in another account", k.ID)
	}
	return err
}

func (c *checker) putPlan(p *core.Plan) {
	switch {
	case !c.belongs(p.AccountID):
		return
	case !isID(p.ID) || p.Seq <= c.planSeq:
		c.problem("plan %s: plans have an id, and are sorted by seq, each once", p.ID)
	case c.plans[p.ID]:
		c.problem("plan %s: a second one with this id", p.ID)
	}
	c.rules("plan", p.ID, p.Check())
	c.plans[p.ID], c.planSeq = true, max(c.planSeq, p.Seq)
}

func (c *checker) putUser(u *core.User) {
	switch {
	case !c.belongs(u.AccountID):
		return
	case u.ID <= c.userID:
		c.problem("user %d: users are sorted by id, from 1, each once", u.ID)
	}
	for _, f := range u.UniqueFilters() {
		if c.unique[f] {
			c.problem("user %d: a second one with this email or external id", u.ID)
		}
		c.unique[f] = true
	}
	if secrets.HasKeyCharacters(u.ExternalID) {
		c.asKeys[secrets.DigestOf(u.ExternalID)] = u.ID
	}
	c.checkPlanID("user", fmt.Sprint(u.ID), u.PlanID)
	if c.rules("user", fmt.Sprint(u.ID), u.Check()) { // else any number of anchors would make each counter expensive
		c.anchors.add(u)
	}
	c.userID = max(c.userID, u.ID)
	c.owners[core.CounterID{Account: u.AccountID, UserID: u.ID}] = len(c.owners) + 1
}

func (c *checker) checkPlanID(kind, id, plan string) {
	if plan != "" && !c.plans[plan] {
		c.problem("%s %s: its plan %s is not in the archive", kind, id, plan)
	}
}

func (c *checker) putKey(ctx context.Context, k *core.Key) error {
	id := core.CounterID{Account: k.AccountID, KeyID: k.ID}
	switch {
	case !c.belongs(k.AccountID):
		return nil
	case !isID(k.ID) || k.Seq <= c.keySeq:
		c.problem("key %s: keys have an id, and are sorted by seq, each once", k.ID)
	case c.owners[id] != 0:
		c.problem("key %s: a second one with this id", k.ID)
	case c.owners[core.CounterID{Account: k.AccountID, UserID: k.UserID}] == 0:
		c.problem("key %s: its user %d is not in the archive", k.ID, k.UserID)
	}
	c.rules("key", k.ID, k.Check())
	c.checkPlanID("key", k.ID, k.PlanID)
	c.keySeq = max(c.keySeq, k.Seq)
	c.owners[id] = len(c.owners) + 1
	c.anchors.add(k)
	for _, d := range k.Digests() {
		other, twice := c.digests[d]
		switch {
		case d == secrets.Digest{}:
			c.problem("key %s: digest is required", k.ID)
		case twice:
			c.problem("key %s: it has the value of the key %s", k.ID, other)
		}
		c.digests[d] = k.ID
		if u := c.asKeys[d]; u != 0 {
			c.rules("key", k.ID, fmt.Errorf("its value is the external id of the user %d, stored in clear", u))
		}
		if err := c.checkKeyInTarget(ctx, k, d); err != nil {
			return err
		}
	}
	return nil
}

// checkKeyInTarget checks that no other key of the target has the digest.
func (c *checker) checkKeyInTarget(ctx context.Context, k *core.Key, d secrets.Digest) error {
	if c.accounts == 0 {
		return nil
	}
	had, err := c.target.KeyByDigest(ctx, d)
	if errors.Is(err, core.ErrKeyNotFound) {
		return nil
	}
	if err == nil && (had.AccountID != k.AccountID || had.ID != k.ID) {
		c.problem("key %s: a key of the store has the same value", k.ID)
	}
	return err
}

// inOrder checks that the key or user of a record is in the archive, and the order of the records. at is the position of the
// record, without the number of its key or user. Counters and days are there once; the events of a history stand together. It
// returns false if there is no such key or user.
func (c *checker) inOrder(of core.CounterID, at position) bool {
	if !c.belongs(of.Account) {
		return false
	}
	deleted := c.at.Kind == KindDay && of.IsDeletedUsers() // the days of the deleted users come first
	if at.number = c.owners[of]; at.number == 0 && !deleted {
		c.problem("%s: %s is not in the archive", c.at.Kind, nameOf(of))
		return false
	}
	sorted := at.number > c.last.number || at.number == c.last.number && at.date > c.last.date
	if c.at.Kind == KindEvent {
		sorted = sorted || at == c.last
	}
	if !sorted {
		c.problem("%s of %s: records are sorted as their users and keys, each once", c.at.Kind, nameOf(of))
	}
	c.last = at
	return true
}
