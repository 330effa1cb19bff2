package storetest

import (
	"fmt"
	"strings"

	"github.com/limitkeeper/limitkeeper/core"
)

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
	total := len(all(e, e.users(u.AccountID, core.UserFilter{})))
	err := e.Store.Update(e.ctx, u.AccountID, putting(u))
	e.isErr(fmt.Sprintf("a user with the email %q", *u.Email), err, core.ErrDuplicateEmail)
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

func emailFreed(e *env) {
	account := e.account()
	changed, cleared, gone := e.addUser(account, "A@example.com"), e.addUser(account, "B@example.com"), e.addUser(account, "C@example.com")
	changed.Email, cleared.Email = new("a2@example.com"), nil
	e.put(changed)
	e.put(cleared)
	e.deleteUsers(account, gone.ID)
	for _, email := range []string{"a@example.com", "b@example.com", "c@example.com"} {
		u := e.addUser(account, email)
		e.wantUsers(account, core.UserFilter{Email: email}, u.ID)
	}
	u := newUser(account, "late")
	u.Email = new("A2@example.com")
	e.refuseEmail(u)
}

func emailUniqueInTx(e *env) {
	account := e.account()
	a, b := newUser(account, "a"), newUser(account, "b")
	a.Email, b.Email = new("same@example.com"), new("Same@example.com")
	err := e.Store.Update(e.ctx, account, putting(a, b))
	e.isErr("two users with one email", err, core.ErrDuplicateEmail)
	e.wantUsers(account, core.UserFilter{})
}

func emailTakenAtOnce(e *env) {
	const callers, rounds = 16, 5
	account := e.account()
	var want []int64
	for round := range rounds {
		errs, users := make([]error, callers), make([]*core.User, callers)
		e.parallel(callers, func(i int) {
			users[i] = newUser(account, fmt.Sprint(i))
			users[i].Email = new(fmt.Sprintf("round%d@example.com", round))
			errs[i] = e.Store.Update(e.ctx, account, putting(users[i]))
		})
		winner := users[e.onlyOne(errs, core.ErrDuplicateEmail)]
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
