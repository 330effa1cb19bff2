package storetest

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
)

var userCases = []testCase{
	{name: "user/read back", run: userReadBack,
		promise: "strings, numbers and compact JSON of a user come back as they went in, times as the same instant in UTC"},
	{name: "user/replace", run: userReplace,
		promise: "PutUser stores a user in place of the one with its ID, and clears members that are now empty"},
	{name: "user/ids", run: userIDs,
		promise: "a new user gets one more than the largest ID that the account ever gave, from 1, also after deletions and reopening"},
	{name: "user/plan filter", run: userPlanFilter,
		promise: "UserFilter.PlanID matches the users with this plan; OnPlan matches them and the users of keys with it, each once, by id"},
	{name: "user/delete", run: userDelete,
		promise: "DeleteUser deletes a user and its keys, and no other resource"},
}

// awkward is text with characters that stores often treat specially.
const awkward = "Ünïcode 日本 \x00\x01/:%{}\u2028\"'\\ <&> 👩‍👩‍👧"

// awkwardJSON is compact JSON that another encoder would change.
var awkwardJSON = json.RawMessage(`{"b":1e400,"a":12345678901234567890,"<&>":"\u00e9é\/","e":[{},null,1.0],"z":0.10}`)

func userReadBack(e *env) {
	account := e.account()
	full := newUser(account, awkward)
	full.Email, full.PlanID, full.Metadata, full.Disabled = new("Ünï.Code+tag@Example.COM"), "plan_x", awkwardJSON, true
	full.ExternalID = awkward
	full.CreatedAt = noon.In(time.FixedZone("somewhere", 3600))
	full.UpdatedAt = time.Date(9999, 12, 31, 23, 59, 59, 999999999, time.UTC)
	bare := newUser(account, "bare")
	e.put(full, bare)

	e.wantUser(full)
	e.wantUser(bare)
	got, err := e.Store.User(e.ctx, account, full.ID)
	e.ok("User", err)
	e.utc(got.CreatedAt, got.UpdatedAt)
	got, err = e.Store.User(e.ctx, account, bare.ID)
	e.ok("User", err)
	if got.Email != nil || got.Metadata != nil || got.ExternalID != "" {
		e.Errorf("members that were never set: got %v, %v and %q, want none", got.Email, got.Metadata, got.ExternalID)
	}
}

// wantUser fails unless the user is stored: by id, in a transaction and in the list.
func (e *env) wantUser(want *core.User) {
	e.Helper()
	got, err := e.Store.User(e.ctx, want.AccountID, want.ID)
	e.ok("User", err)
	e.same("User", want, got)
	e.update(want.AccountID, func(tx core.Tx) (err error) {
		got, err = tx.User(want.ID)
		return err
	})
	e.same("User in a transaction", want, got)
	for _, u := range all(e, e.users(want.AccountID, core.UserFilter{})) {
		if u.ID == want.ID {
			e.same("user in the list", want, u)
			return
		}
	}
	e.Errorf("user %d is not in the list", want.ID)
}

func userReplace(e *env) {
	account := e.account()
	u := newUser(account, "before")
	u.Email, u.PlanID, u.Metadata, u.Disabled = new("before@example.com"), "plan_before", json.RawMessage(`{"a":1}`), true
	u.ExternalID = "cus_before"
	other := newUser(account, "other")
	e.put(u, other)

	u.Name, u.Email, u.PlanID, u.Metadata, u.Disabled = "after", new("after@example.com"), "plan_after", json.RawMessage(`{}`), false
	u.ExternalID, u.UpdatedAt = "cus_after", noon.Add(time.Hour)
	e.put(u)
	e.wantUser(u)

	u.Email, u.ExternalID, u.PlanID, u.Metadata = nil, "", "", nil
	e.put(u)
	e.wantUser(u)
	e.wantUser(other)
	e.wantUsers(account, core.UserFilter{}, u.ID, other.ID)
}

func userIDs(e *env) {
	account, another := e.account(), e.account()
	create := func(want ...int64) {
		e.Helper()
		var users []any
		for range want {
			users = append(users, newUser(account, "user"))
		}
		e.put(users...)
		for i, u := range users {
			if got := u.(*core.User).ID; got != want[i] {
				e.Errorf("ID of a new user: got %d, want %d", got, want[i])
			}
		}
	}
	create(1)
	create(2, 3, 4)
	e.put(newUser(another, "the other account counts for itself"))
	e.wantUsers(another, core.UserFilter{}, 1)

	e.deleteUsers(account, 4, 2) // the largest id, and one in between
	create(5)
	failure := errors.New("no")
	e.isErr("Update when fn fails", e.Store.Update(e.ctx, account, func(tx core.Tx) error {
		return errors.Join(tx.PutUser(newUser(account, "given up")), failure)
	}), failure)
	create(6)

	e.deleteUsers(account, 6, 5, 3, 1)
	e.wantUsers(account, core.UserFilter{})
	e.reopen()
	create(7)
	e.reopen()
	create(8)
	e.wantUsers(account, core.UserFilter{}, 7, 8)
}

// deleteUsers deletes users, each in its own transaction.
func (e *env) deleteUsers(account string, ids ...int64) {
	e.Helper()
	for _, id := range ids {
		e.update(account, func(tx core.Tx) error { return tx.DeleteUser(id) })
	}
}

// deleteKeys is deleteUsers for keys.
func (e *env) deleteKeys(account string, ids ...string) {
	e.Helper()
	for _, id := range ids {
		e.update(account, func(tx core.Tx) error { return tx.DeleteKey(id) })
	}
}

func userPlanFilter(e *env) {
	account := e.account()
	a, b, c := newUser(account, "a"), newUser(account, "b"), newUser(account, "c")
	a.PlanID = "plan_x"
	e.put(a, b, c, newPlan(account, "plan_x"), newPlan(account, "plan_xy"))
	want := func(when, plan string, with, on []int64) {
		e.Helper()
		e.Logf("%s: %s", when, plan)
		e.wantUsers(account, core.UserFilter{PlanID: plan}, with...)
		e.wantUsers(account, core.UserFilter{OnPlan: plan}, on...)
	}
	ids := func(ids ...int64) []int64 { return ids }
	want("a has the plan", "plan_x", ids(1), ids(1))
	want("a has the plan", "plan_xy", nil, nil)

	k2, k3, k4 := newKey(account, "key_2", 2, "plan_x"), newKey(account, "key_3", 2, "plan_x"), newKey(account, "key_4", 1, "plan_x")
	e.put(k2, k3, k4)
	want("b has two keys with it, a one", "plan_x", ids(1), ids(1, 2))
	e.deleteKeys(account, "key_2")
	want("one of the two is gone", "plan_x", ids(1), ids(1, 2))
	k3.PlanID = "plan_xy"
	e.put(k3)
	want("the other has another plan", "plan_x", ids(1), ids(1))
	want("the other has another plan", "plan_xy", nil, ids(2))
	k3.UserID = 3
	e.put(k3)
	want("the key moved to c", "plan_xy", nil, ids(3))
	a.PlanID = ""
	e.put(a)
	want("a has the key alone", "plan_x", nil, ids(1))
	k4.PlanID = ""
	e.put(k4)
	want("a's key draws on a's plan", "plan_x", nil, nil)
	b.PlanID, c.PlanID = "plan_xy", "plan_xy"
	e.put(b, c)
	want("b and c have the plan, c also a key", "plan_xy", ids(2, 3), ids(2, 3))
	e.deleteUsers(account, 3)
	want("c is gone", "plan_xy", ids(2), ids(2))
	e.wantUsers(account, core.UserFilter{PlanID: "plan_missing"})
	e.wantUsers(account, core.UserFilter{OnPlan: "plan_missing"})
}

func userDelete(e *env) {
	account, other := e.account(), e.account()
	for _, of := range []string{account, other} {
		for range 10 { // "1" is a prefix of "10"
			e.put(newUser(of, "user"))
		}
		e.put(newKey(of, "key_1", 1, "plan_x"), newKey(of, "key_10", 10, "plan_x"), newKey(of, "key_11", 1, ""))
	}
	e.deleteUsers(account, 1)

	_, err := e.Store.User(e.ctx, account, 1)
	e.isErr("the deleted user", err, core.ErrUserNotFound)
	for _, id := range []string{"key_1", "key_11"} {
		e.noKey(account, id, 1)
	}
	e.wantUsers(account, core.UserFilter{}, 2, 3, 4, 5, 6, 7, 8, 9, 10)
	e.wantUsers(account, core.UserFilter{OnPlan: "plan_x"}, 10)
	e.wantKeys(account, core.KeyFilter{}, "key_10")
	e.wantKeys(account, core.KeyFilter{UserID: 1})
	e.wantKeys(other, core.KeyFilter{}, "key_1", "key_10", "key_11")
	e.wantUsers(other, core.UserFilter{}, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10)
	e.update(account, func(tx core.Tx) error {
		_, err := tx.User(1)
		e.isErr("the deleted user in a transaction", err, core.ErrUserNotFound)
		return nil
	})
}

var emailCases = []testCase{
	{name: "email/unique", run: emailUnique,
		promise: "an email that another user of the account has, compared by FoldEmail, is ErrDuplicateEmail, and nothing is stored"},
	{name: "email/freed", run: emailFreed,
		promise: "an email is free once its user has another email, has none or is deleted"},
	{name: "email/unique in one transaction", run: emailUniqueInTx,
		promise: "two new users of one transaction do not get the same email"},
	{name: "email/taken at once", run: emailTakenAtOnce,
		promise: "of concurrent creations with one email exactly one succeeds"},
	{name: "email/filter", run: emailFilter,
		promise: "UserFilter.Email matches the whole current address, compared by FoldEmail"},
}

var externalIDCases = []testCase{
	{name: "external id/unique", run: externalIDUnique,
		promise: "an external id that another user of the account has is ErrDuplicateExternalID, and nothing is stored"},
	{name: "external id/freed", run: externalIDFreed,
		promise: "an external id is free once its user has another one, has none or is deleted"},
	{name: "external id/case", run: externalIDCase,
		promise: "external ids are compared byte by byte, and are independent of emails"},
	{name: "external id/unique in one transaction", run: externalIDUniqueInTx,
		promise: "two new users of one transaction do not get the same external id"},
	{name: "external id/taken at once", run: externalIDTakenAtOnce,
		promise: "of concurrent creations with one external id exactly one succeeds"},
	{name: "external id/filter", run: externalIDFilter,
		promise: "UserFilter.ExternalID matches the whole current external id, in lists and in counts"},
	{name: "external id/reopen", run: externalIDReopened, own: true,
		promise: "external ids, and that they are taken, survive Close"},
}

// addUser stores a new user with an email.
func (e *env) addUser(account, email string) *core.User {
	e.Helper()
	u := newUser(account, email)
	u.Email = &email
	e.put(u)
	return u
}

// refuseEmail fails unless storing the user is ErrDuplicateEmail.
func (e *env) refuseEmail(u *core.User) {
	e.Helper()
	e.refuseUser(fmt.Sprintf("a user with the email %q", *u.Email), u, core.ErrDuplicateEmail)
}

// refuseUser fails unless storing the user is the error want and stores nothing.
func (e *env) refuseUser(what string, u *core.User, want error) {
	e.Helper()
	total := len(all(e, e.users(u.AccountID, core.UserFilter{})))
	e.isErr(what, e.Store.Update(e.ctx, u.AccountID, putting(u)), want)
	if got := len(all(e, e.users(u.AccountID, core.UserFilter{}))); got != total {
		e.Errorf("users after the refusal: got %d, want %d", got, total)
	}
}

func emailUnique(e *env) {
	account, other := e.account(), e.account()
	long := strings.Repeat("a", 64) + "@" + strings.Repeat("b", 180) + ".example"
	first := e.addUser(account, "Jo.Ö@Example.com")
	second := e.addUser(account, long)
	for taken, other := range map[string]*core.User{
		"Jo.Ö@Example.com": second, "jo.ö@example.com": second, "JO.Ö@EXAMPLE.COM": second, strings.ToUpper(long): first,
	} {
		u, change := newUser(account, "late"), *other
		u.Email, change.Email = &taken, &taken
		e.refuseEmail(u)
		e.refuseEmail(&change)
	}
	e.wantUser(first)
	e.wantUser(second)

	first.Email = new("JO.ö@example.com") // its own email in another case
	e.put(first)
	e.wantUser(first)
	e.addUser(account, "jo.ö@example.co")
	e.addUser(account, "jo.ö@example.com.uk")
	e.addUser(other, "jo.ö@example.com")
	e.put(newUser(account, "without"), newUser(account, "without as well"))
}

func emailFreed(e *env) { e.freed(theEmail) }

func emailUniqueInTx(e *env) { e.uniqueInTx(theEmail) }

func emailTakenAtOnce(e *env) { e.takenAtOnce(theEmail) }

// uniqueMember is a member that no two users of an account share.
type uniqueMember struct {
	taken  error // of a second user
	set    func(u *core.User, name string)
	filter func(name string) core.UserFilter
	same   func(name string) string // another name that gives the same member, if there is one
}

var theEmail = uniqueMember{
	taken:  core.ErrDuplicateEmail,
	set:    func(u *core.User, name string) { u.Email = new(name + "@example.com") },
	filter: func(name string) core.UserFilter { return core.UserFilter{Email: name + "@example.com"} },
	same:   strings.ToUpper,
}

var theExternalID = uniqueMember{
	taken:  core.ErrDuplicateExternalID,
	set:    func(u *core.User, name string) { u.ExternalID = name },
	filter: func(name string) core.UserFilter { return core.UserFilter{ExternalID: name} },
	same:   func(name string) string { return name },
}

// newUser returns a new user with the member.
func (m uniqueMember) newUser(account, name string) *core.User {
	u := newUser(account, "user "+name)
	m.set(u, name)
	return u
}

// freed checks that the member of a user is free after a change, after it is cleared, and after the user is deleted.
func (e *env) freed(m uniqueMember) {
	e.Helper()
	account := e.account()
	changed, cleared, gone := m.newUser(account, "a"), m.newUser(account, "b"), m.newUser(account, "c")
	e.put(changed, cleared, gone)
	m.set(changed, "a2")
	cleared.Email, cleared.ExternalID = nil, ""
	e.put(changed)
	e.put(cleared)
	e.deleteUsers(account, gone.ID)
	for _, name := range []string{"a", "b", "c"} {
		u := m.newUser(account, m.same(name))
		e.put(u)
		e.wantUsers(account, m.filter(name), u.ID)
	}
	e.wantUser(cleared)
	e.refuseUser("a user with the changed member of another one", m.newUser(account, m.same("a2")), m.taken)
}

// uniqueInTx checks that two new users of one transaction do not get the same member.
func (e *env) uniqueInTx(m uniqueMember) {
	e.Helper()
	account := e.account()
	err := e.Store.Update(e.ctx, account, putting(m.newUser(account, "same"), m.newUser(account, m.same("same"))))
	e.isErr("two users with the same member", err, m.taken)
	e.wantUsers(account, core.UserFilter{})
	e.put(m.newUser(account, "same"))
}

// takenAtOnce checks that of concurrent creations with the same member exactly one succeeds.
func (e *env) takenAtOnce(m uniqueMember) {
	e.Helper()
	const callers, rounds = 16, 5
	account := e.account()
	var want []int64
	for round := range rounds {
		errs, users := make([]error, callers), make([]*core.User, callers)
		e.parallel(callers, func(i int) {
			users[i] = m.newUser(account, fmt.Sprintf("round%d", round))
			errs[i] = e.Store.Update(e.ctx, account, putting(users[i]))
		})
		winner := users[e.onlyOne(errs, m.taken)]
		e.wantUser(winner)
		want = append(want, winner.ID)
	}
	e.wantUsers(account, core.UserFilter{}, want...)
}

func emailFilter(e *env) {
	account, other := e.account(), e.account()
	u := e.addUser(account, "Jo@Example.com")
	e.addUser(account, "jo@example.com.uk")
	e.addUser(account, "mojo@example.com")
	elsewhere := e.addUser(other, "jo@example.com")
	for _, same := range []string{"Jo@Example.com", "jo@example.com", "JO@EXAMPLE.COM"} {
		e.wantUsers(account, core.UserFilter{Email: same}, u.ID)
		e.wantUsers(other, core.UserFilter{Email: same}, elsewhere.ID)
	}
	for _, none := range []string{"jo", "jo@example.co", "o@example.com", "jo@example.com ", "%", "*"} {
		e.wantUsers(account, core.UserFilter{Email: none})
	}
	u.Email = new("new@example.com")
	e.put(u)
	e.wantUsers(account, core.UserFilter{Email: "jo@example.com"})
	e.wantUsers(account, core.UserFilter{Email: "NEW@example.com"}, u.ID)
	e.deleteUsers(account, u.ID)
	e.wantUsers(account, core.UserFilter{Email: "new@example.com"})
	e.wantUsers(other, core.UserFilter{Email: "jo@example.com"}, elsewhere.ID)
}

// addExternal stores a new user with an external id.
func (e *env) addExternal(account, id string) *core.User {
	e.Helper()
	u := theExternalID.newUser(account, id)
	e.put(u)
	return u
}

// refuseExternalID fails unless storing the user is ErrDuplicateExternalID.
func (e *env) refuseExternalID(u *core.User) {
	e.Helper()
	e.refuseUser(fmt.Sprintf("a user with the external id %q", u.ExternalID), u, core.ErrDuplicateExternalID)
}

func externalIDUnique(e *env) {
	account, other := e.account(), e.account()
	first, second := e.addExternal(account, "cus_1"), e.addExternal(account, strings.Repeat("ü", 255))
	for taken, other := range map[string]*core.User{first.ExternalID: second, second.ExternalID: first} {
		u, change := theExternalID.newUser(account, taken), *other
		change.ExternalID = taken
		u.Email, change.Email = new("late@example.com"), new("change@example.com")
		e.refuseExternalID(u)
		e.refuseExternalID(&change)
	}
	e.wantUser(first)
	e.wantUser(second)
	e.wantUsers(account, core.UserFilter{Email: "late@example.com"})
	e.wantUsers(account, core.UserFilter{Email: "change@example.com"})

	first.Name = "the same external id"
	e.put(first)
	e.wantUser(first)
	e.addExternal(other, "cus_1")
	e.put(newUser(account, "without"), newUser(account, "without as well"))
}

func externalIDFreed(e *env) { e.freed(theExternalID) }

func externalIDCase(e *env) {
	account := e.account()
	ids := []string{"Cus_Ä", "cus_Ä", "cus_ä", "cus_a\u0308", "cus", "cus_", "jo@example.com"}
	users := make([]*core.User, len(ids))
	for i, id := range ids {
		users[i] = e.addExternal(account, id)
	}
	e.addUser(account, "jo@example.com")
	for i, id := range ids {
		e.wantUser(users[i])
		e.wantUsers(account, core.UserFilter{ExternalID: id}, users[i].ID)
	}
	e.wantUsers(account, core.UserFilter{ExternalID: "CUS_Ä"})
	e.wantUsers(account, core.UserFilter{ExternalID: "JO@example.com"})
}

func externalIDUniqueInTx(e *env) { e.uniqueInTx(theExternalID) }

func externalIDTakenAtOnce(e *env) { e.takenAtOnce(theExternalID) }

func externalIDFilter(e *env) {
	account, other := e.account(), e.account()
	u := e.addExternal(account, "cus_1")
	e.addExternal(account, "cus_12")
	elsewhere := e.addExternal(other, "cus_1")
	wantUsers := func(account, id string, want ...int64) {
		e.Helper()
		e.wantUsers(account, core.UserFilter{ExternalID: id}, want...) // also checks the count in a transaction
	}
	wantUsers(account, "cus_1", u.ID)
	wantUsers(other, "cus_1", elsewhere.ID)
	for _, none := range []string{"cus_", "us_1", "cus_1 ", "cus_123", "%", "*", "user"} {
		wantUsers(account, none)
	}
	u.ExternalID = "new"
	e.put(u)
	wantUsers(account, "cus_1")
	wantUsers(account, "new", u.ID)
	e.deleteUsers(account, u.ID)
	wantUsers(account, "new")
	wantUsers(other, "cus_1", elsewhere.ID)
}

func externalIDReopened(e *env) {
	account := e.account()
	u, changed, gone := e.addExternal(account, "kept"), e.addExternal(account, "before"), e.addExternal(account, "gone")
	changed.ExternalID = "after"
	e.put(changed)
	e.deleteUsers(account, gone.ID)
	e.reopen()
	e.wantUser(u)
	for id, want := range map[string][]int64{"kept": {u.ID}, "after": {changed.ID}, "before": nil, "gone": nil} {
		e.wantUsers(account, core.UserFilter{ExternalID: id}, want...)
	}
	e.refuseExternalID(theExternalID.newUser(account, "after"))
	e.addExternal(account, "gone")
}
