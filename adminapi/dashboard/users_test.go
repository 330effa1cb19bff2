package dashboard_test

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/service"
)

var rowPattern = regexp.MustCompile(`<th scope="row"(?: rowspan="\d+")?><a href="[^"]*">([^<]*)</a>`)

// rows returns the names in the first column of a table.
func (a answer) rows() (names []string) {
	for _, m := range rowPattern.FindAllStringSubmatch(a.body, -1) {
		names = append(names, m[1])
	}
	return names
}

// wantRows fails unless the table has exactly these names.
func (a answer) wantRows(t *testing.T, names ...string) {
	t.Helper()
	if got := a.rows(); !slices.Equal(got, names) {
		t.Errorf("%s: got rows %q, want %q", a.path, got, names)
	}
}

// wantNone fails when a page holds one of the texts.
func (a answer) wantNone(t *testing.T, texts ...string) {
	t.Helper()
	for _, text := range texts {
		if strings.Contains(a.body, text) {
			t.Errorf("%s: want no %q on the page, got\n%s", a.path, text, a.body)
		}
	}
}

// plan makes a plan of an account.
func (s *site) plan(acc *core.Account, name string, limit int64) *core.Plan {
	s.Helper()
	pl, err := s.svc.CreatePlan(context.Background(), acc.ID, core.PlanPatch{Name: &name, Limit: core.Some(limit), Period: new("month")})
	if err != nil {
		s.Fatal(err)
	}
	return pl
}

// user makes a user on a plan.
func (s *site) user(acc *core.Account, name, plan string) *core.User {
	s.Helper()
	u, err := s.svc.CreateUser(context.Background(), acc.ID, core.UserPatch{Name: &name, PlanID: core.Some(plan)})
	if err != nil {
		s.Fatal(err)
	}
	return u
}

// userNow returns a user as it is.
func (s *site) userNow(id int64) *core.User {
	s.Helper()
	u, err := s.svc.User(context.Background(), s.acc.ID, id)
	if err != nil {
		s.Fatal(err)
	}
	return u
}

// users returns how many users an account has.
func (s *site) users(acc *core.Account) int {
	s.Helper()
	_, n, err := s.svc.Users(context.Background(), acc.ID, core.UserFilter{}, core.Page{Number: 1, Size: 1})
	if err != nil {
		s.Fatal(err)
	}
	return n
}

// numbered returns names with the numbers from first to last.
func numbered(prefix string, first, last int) (names []string) {
	for n := first; n <= last; n++ {
		names = append(names, prefix+strconv.Itoa(n/10)+strconv.Itoa(n%10))
	}
	return names
}

func TestUserIsCreatedAndEdited(t *testing.T) {
	s := newSite(t)
	b := s.signedIn("Acme")
	b.get("/dashboard/users").want(t, http.StatusOK, "No users yet", "Create the first user")
	pl, other := s.plan(s.acc, "Team", 100), s.plan(s.acc, "Business", 1000)

	p := b.send("/dashboard/users/new", "users", url.Values{"name": {" Ada Lovelace "}, "email": {"ada@example.com"}, "external_id": {" cus_<1> "},
		"plan_id": {pl.ID}, "metadata": {`{ "ref": 17 }`}})
	p.want(t, http.StatusOK, "Created.", "Ada Lovelace", "ada@example.com", "<code>cus_&lt;1&gt;</code>", "Team", "&#34;ref&#34;: 17", "No keys yet")
	if p.path != "/dashboard/users/1?done=created" {
		t.Errorf("after creating: got %s, want the page of the user", p.path)
	}
	if u := s.userNow(1); u.Name != "Ada Lovelace" || *u.Email != "ada@example.com" || u.ExternalID != "cus_<1>" || u.PlanID != pl.ID || string(u.Metadata) != `{"ref":17}` {
		t.Errorf("got %+v, want what was filled in", u)
	}

	b.get("/dashboard/users/1/edit").want(t, http.StatusOK, `value="Ada Lovelace"`, `value="ada@example.com"`, `value="cus_&lt;1&gt;"`, `<option value="`+pl.ID+`" selected>`, "&#34;ref&#34;: 17")
	b.send("/dashboard/users/1/edit", "users/1", url.Values{"name": {"Ada King"}, "email": {""}, "external_id": {""}, "plan_id": {other.ID}, "metadata": {""}}).
		want(t, http.StatusOK, "Saved.", "Ada King", "Business").wantNone(t, "External id")
	if u := s.userNow(1); u.Name != "Ada King" || u.Email != nil || u.ExternalID != "" || u.PlanID != other.ID || u.Metadata != nil {
		t.Errorf("got %+v, want what was filled in", u)
	}
}

// faultStatus returns the status of a form with a fault.
func faultStatus(fault string) int {
	if strings.Contains(fault, "There is no") {
		return http.StatusNotFound
	}
	return http.StatusUnprocessableEntity
}

// An error is shown at its field, and the entered values stay.
func TestUserFaults(t *testing.T) {
	s := newSite(t)
	b := s.signedIn("Acme")
	pl := s.plan(s.acc, "Team", 100)
	gone := s.plan(s.acc, "Gone", 100)
	if err := s.svc.DeletePlan(context.Background(), s.acc.ID, gone.ID); err != nil {
		t.Fatal(err)
	}
	s.user(s.acc, "Grace", pl.ID)
	b.send("/dashboard/users/new", "users", url.Values{"name": {"First"}, "email": {"taken@example.com"}, "external_id": {"cus_taken"}})
	for _, c := range []struct{ field, value, fault string }{
		{"name", " ", "Name is required"},
		{"name", strings.Repeat("n", 256), "Name must be at most 255 characters long"},
		{"email", "nobody", "Invalid email format"},
		{"email", "Taken@example.com", "A user with this email exists already"},
		{"external_id", "cus_taken", "Another user of the account has this external_id"},
		{"external_id", strings.Repeat("n", 256), "External id must be at most 255 characters long"},
		{"plan_id", gone.ID, "There is no such plan"},
		{"metadata", "ref 17", "Metadata must be JSON: invalid character"},
		{"metadata", `["ref"]`, "Metadata must be an object"},
	} {
		for _, at := range []struct{ page, action string }{{"/dashboard/users/new", "users"}, {"/dashboard/users/1/edit", "users/1"}} {
			form := url.Values{"name": {"Typed name"}, "email": {"typed@example.com"}, "external_id": {"cus_typed"}, "plan_id": {pl.ID}, "metadata": {`{"typed":1}`}}
			form.Set(c.field, c.value)
			status := faultStatus(c.fault)
			p := b.send(at.page, at.action, form)
			p.want(t, status, `<small id="about-`+c.field+`" class="fault">`+c.fault)
			for name, kept := range map[string]string{"name": "Typed name", "email": "typed@example.com", "external_id": "cus_typed", "metadata": "{&#34;typed&#34;:1}"} {
				if name != c.field {
					p.want(t, status, kept)
				}
			}
		}
	}
	if n := s.users(s.acc); n != 2 {
		t.Errorf("got %d users, want 2", n)
	}
	if u := s.userNow(1); u.Name != "Grace" {
		t.Errorf("got the name %q, want it unchanged", u.Name)
	}
}

func TestUsersAreSearchedFilteredAndPaged(t *testing.T) {
	s := newSite(t)
	s.filled()
	b := s.signedIn("Acme")
	plans, _, err := s.svc.Plans(context.Background(), s.acc.ID, core.Page{Number: 1, Size: 3})
	if err != nil {
		t.Fatal(err)
	}
	free := plans[0].ID

	first := b.get("/dashboard/users").want(t, http.StatusOK, "1–25 of 60", `href="/dashboard/users?page=2"`)
	first.wantRows(t, numbered("Customer ", 1, 25)...)
	b.get("/dashboard/users?page=3").want(t, http.StatusOK, "51–60 of 60", `href="/dashboard/users?page=2"`).wantRows(t, numbered("Customer ", 51, 60)...)
	b.get("/dashboard/users?page=4").want(t, http.StatusOK, "No user is found", "Show all users").wantRows(t)

	b.get("/dashboard/users?q=CUSTOMER%200").want(t, http.StatusOK, "1–9<", `value="CUSTOMER 0"`).wantRows(t, numbered("Customer ", 1, 9)...)
	b.get("/dashboard/users?q=customer42%40example").wantRows(t, "Customer 42")
	b.get("/dashboard/users?q=CUS_3007").wantRows(t, "Customer 07")
	b.get("/dashboard/users?q=17").want(t, http.StatusOK).wantRows(t, "Customer 17")
	b.get("/dashboard/users?q=example.com").want(t, http.StatusOK, "1–25<", "page=2&amp;q=example.com").wantRows(t, numbered("Customer ", 1, 25)...)
	b.get("/dashboard/users?q=example.com&page=3").wantRows(t, numbered("Customer ", 51, 60)...)
	b.get("/dashboard/users?q=nobody").want(t, http.StatusOK, "No user is found").wantRows(t)

	filtered := b.get("/dashboard/users?plan="+free).want(t, http.StatusOK, "1–20 of 20", `<option value="`+free+`" selected>Free`)
	if rows := filtered.rows(); len(rows) != 20 || rows[1] != "Customer 04" {
		t.Errorf("the plan's users: got %q, want every third", rows)
	}
	b.get("/dashboard/users?q=customer%200&plan="+free).wantRows(t, "Customer 01", "Customer 04", "Customer 07")
	b.get("/dashboard/users?plan=plan_none").want(t, http.StatusNotFound, "No user is found", `<option value="plan_none" selected>`)
}

// The chosen plan is among the options for any number of plans.
func TestFilteredPlanIsAmongTheChoices(t *testing.T) {
	s := newSite(t)
	for range 101 {
		s.plan(s.acc, "Plan", 10)
	}
	last := s.plan(s.acc, "The last one", 10)
	s.user(s.acc, "Ada", last.ID)
	b := s.signedIn("Acme")
	b.get("/dashboard/users").wantNone(t, `<option value="`+last.ID)
	b.get("/dashboard/users?plan="+last.ID).want(t, http.StatusOK, `<option value="`+last.ID+`" selected>The last one`).wantRows(t, "Ada")
	b.get("/dashboard/users/1/edit").want(t, http.StatusOK, `<option value="`+last.ID+`" selected>The last one`)
}

func TestUserIsDisabledAndEnabled(t *testing.T) {
	s := newSite(t)
	u := s.user(s.acc, "Ada", s.plan(s.acc, "Team", 100).ID)
	_, secret := s.key(s.acc, u.ID, "production")
	b := s.signedIn("Acme")
	page := "/dashboard/users/1"
	b.get(page).want(t, http.StatusOK, `name="disabled" value="true"`, ">Disable<")
	b.send(page, "users/1/disabled", url.Values{"disabled": {"true"}}).want(t, http.StatusOK, "Disabled: the next request is refused.", ">Enable<", "user disabled")
	s.wantOutcome(secret, service.Disabled)
	b.get("/dashboard/users").want(t, http.StatusOK, ">disabled<")
	b.send(page, "users/1/disabled", url.Values{"disabled": {"perhaps"}}).want(t, http.StatusBadRequest)
	s.wantOutcome(secret, service.Disabled)
	b.send(page, "users/1/disabled", url.Values{"disabled": {"false"}}).want(t, http.StatusOK, "Enabled again.")
	s.wantOutcome(secret, service.Allowed)
}

func TestUserIsDeletedWithItsKeys(t *testing.T) {
	s := newSite(t)
	u := s.user(s.acc, "Ada", s.plan(s.acc, "Team", 100).ID)
	b := s.signedIn("Acme")
	page := "/dashboard/users/1/delete"
	b.get(page).want(t, http.StatusOK, "Delete “Ada”?", "It has no keys.")
	_, secret := s.key(s.acc, u.ID, "production")
	b.get(page).want(t, http.StatusOK, "Its key is deleted with it")
	s.key(s.acc, u.ID, "staging")
	b.get(page).want(t, http.StatusOK, "Its 2 keys are deleted with it")
	s.wantOutcome(secret, service.Allowed)
	b.send(page, "users/1/delete", nil).want(t, http.StatusOK, "Deleted.", "No users yet")
	s.wantOutcome(secret, service.Unknown)
	b.get("/dashboard/users/1").want(t, http.StatusNotFound, "User not found")
}

// The page of a user shows its usage, its limit and when the limit resets. With several counters
// the page lists each, and a counter that is used up leads: a sum would say that much is left.
func TestUserUsage(t *testing.T) {
	s := newSite(t)
	team, own := s.plan(s.acc, "Team", 5), s.plan(s.acc, "Own", 95)
	u := s.user(s.acc, "Ada", team.ID)
	_, secret := s.key(s.acc, u.ID, "production")
	for range 4 {
		s.wantOutcome(secret, service.Allowed)
	}
	b := s.signedIn("Acme")
	b.get("/dashboard/users/1").want(t, http.StatusOK, "<b>4</b> of 5 a month", "1 left", "Resets on 1 ", `class="high" width="80"`, `aria-label="4 of 5 used"`)
	s.wantOutcome(secret, service.Allowed)
	b.get("/dashboard/users/1").want(t, http.StatusOK, "<b>5</b> of 5 a month", "used up", `class="full" width="100"`)
	k, _ := s.key(s.acc, u.ID, "batch")
	if _, err := s.svc.UpdateKey(context.Background(), s.acc.ID, k.ID, core.KeyPatch{PlanID: core.Some(own.ID)}); err != nil {
		t.Fatal(err)
	}
	p := b.get("/dashboard/users/1").want(t, http.StatusOK, "A limit is used up", `5 <span class="quiet">of 5</span> <span class="tag bad">used up</span>`,
		`0 <span class="quiet">of 95</span>`)
	p.wantNone(t, "of 100", "closest to their limit")
	p.wantRows(t, "batch", "production", "batch")
	if strings.Index(p.body, ">shared<") > strings.Index(p.body, "of 95<") {
		t.Errorf("want the counter that is used up first, got\n%s", p.body)
	}
	b.get("/dashboard/").want(t, http.StatusOK, `<span class="tag bad">used up</span>`)
	for range 10 {
		k, _ := s.key(s.acc, u.ID, "more")
		if _, err := s.svc.UpdateKey(context.Background(), s.acc.ID, k.ID, core.KeyPatch{PlanID: core.Some(own.ID)}); err != nil {
			t.Fatal(err)
		}
	}
	b.get("/dashboard/users/1").want(t, http.StatusOK, "A limit is used up", "The 10 closest to their limit, of 12.")
}

// The pages of a user and of a key show each meter of a counter: tokens and spend beside requests.
func TestUsageOfEveryMeter(t *testing.T) {
	s := newSite(t)
	k, secret := s.customer(s.acc, "AI", 10)
	u, err := s.svc.User(t.Context(), s.acc.ID, k.UserID)
	if err != nil {
		t.Fatal(err)
	}
	_, err = s.svc.UpdatePlan(t.Context(), s.acc.ID, u.PlanID, core.PlanPatch{Limits: core.Some([]core.Limit{
		{Meter: "tokens", Max: 500, Period: core.Month}, {Meter: "spend", Max: 20_000, Period: core.Month, OnExceed: core.AllowExceed}})})
	if err != nil {
		t.Fatal(err)
	}
	d, err := s.svc.Validate(t.Context(), s.acc.ID, service.Request{Secret: secret, Endpoint: "/v1/chat", Method: "POST", Cost: 1,
		Costs: []core.MeterCost{{Meter: "spend", Cost: 20_700}, {Meter: "tokens", Cost: 500}}})
	if err != nil || d.Outcome != service.Allowed {
		t.Fatalf("got %v, %v, want it allowed", d.Outcome, err)
	}
	b := s.signedIn("Acme")
	user := fmt.Sprintf("/dashboard/users/%d", k.UserID)
	for _, page := range []string{user, "/dashboard/keys/" + k.ID} {
		b.get(page).want(t, http.StatusOK, "<b>1</b> of 10", "<b>500</b> of 500 tokens a month", "used up", "<b>20,700</b> of 20,000 spend a month", "700 beyond")
	}
	if _, _, err = s.svc.CreateKey(t.Context(), s.acc.ID, core.KeyPatch{Name: new("Second"), UserID: &k.UserID, PlanID: core.Some(u.PlanID)}); err != nil {
		t.Fatal(err)
	}
	b.get(user).want(t, http.StatusOK, "A limit is used up", `rowspan="3"`, `500 <span class="quiet">of 500 tokens</span> <span class="tag bad">used up</span>`,
		`20,700 <span class="quiet">of 20,000 spend</span>`, `0 <span class="quiet">of 500 tokens</span>`)
}

// A form that is sent twice creates one user.
func TestUserFormIsTakenOnce(t *testing.T) {
	s := newSite(t)
	b := s.signedIn("Acme")
	form := url.Values{"name": {"Ada"}, "form": {b.token("/dashboard/users/new")}}
	b.post("/dashboard/users", form).want(t, http.StatusOK, "Created.")
	b.post("/dashboard/users", form).want(t, http.StatusBadRequest, "already sent")
	if n := s.users(s.acc); n != 1 {
		t.Errorf("got %d users, want 1", n)
	}
}

func TestNamesAreEscaped(t *testing.T) {
	s := newSite(t)
	const name, escaped = `<script>alert("x")</script>`, "&lt;script&gt;alert("
	pl := s.plan(s.acc, name, 100)
	u := s.user(s.acc, name, pl.ID)
	k, _ := s.key(s.acc, u.ID, name)
	b := s.signedIn("Acme")
	for _, page := range []string{"users", "users?q=" + url.QueryEscape(name) + "&plan=" + url.QueryEscape(name), "users/1", "users/1/edit", "users/1/delete",
		"keys", "keys?q=" + url.QueryEscape(name) + "&user=" + url.QueryEscape(name), "keys/new?user=1",
		"keys/" + k.ID, "keys/" + k.ID + "/edit", "keys/" + k.ID + "/regenerate", "keys/" + k.ID + "/delete"} {
		status := http.StatusOK
		if strings.Contains(page, "&") { // filters with a missing plan or user
			status = http.StatusNotFound
		}
		b.get("/dashboard/"+page).want(t, status, escaped).wantNone(t, "<script>alert")
	}
}

// Resources of another account get 404.
func TestUsersOfAnotherAccount(t *testing.T) {
	s := newSite(t)
	other := s.account("Other")
	pl := s.plan(other, "Theirs", 100)
	u := s.user(other, "Theirs", pl.ID)
	mine := s.user(s.acc, "Mine", s.plan(s.acc, "Team", 100).ID)
	if mine.ID != u.ID {
		t.Fatalf("got the ids %d and %d, want the same in both accounts", mine.ID, u.ID)
	}
	theirs := s.user(other, "Theirs too", pl.ID)
	path := "users/" + strconv.FormatInt(theirs.ID, 10)
	b := s.signedIn("Acme")
	for _, page := range []string{path, path + "/edit", path + "/delete", "users/x", "users/99999999999999999999"} {
		b.get("/dashboard/"+page).want(t, http.StatusNotFound, "User not found")
	}
	for action, form := range map[string]url.Values{path: {"name": {"Taken over"}}, path + "/disabled": {"disabled": {"true"}}, path + "/delete": {}} {
		b.send("/dashboard/users/new", action, form).want(t, http.StatusNotFound)
	}
	b.send("/dashboard/users/new", "users", url.Values{"name": {"Ada"}, "plan_id": {pl.ID}}).want(t, http.StatusNotFound, "There is no such plan")
	b.send("/dashboard/users/1/edit", "users/1", url.Values{"name": {"Ada"}, "plan_id": {pl.ID}}).want(t, http.StatusNotFound, "There is no such plan")
	b.get("/dashboard/users?plan="+pl.ID).want(t, http.StatusNotFound, "No user is found").wantNone(t, "Theirs")

	got, err := s.svc.User(context.Background(), other.ID, theirs.ID)
	if err != nil || got.Name != "Theirs too" || got.Disabled {
		t.Errorf("the other account's user: got %+v, %v, want it unchanged", got, err)
	}
	if u := s.userNow(1); u.Name != "Mine" {
		t.Errorf("got the name %q, want it unchanged", u.Name)
	}
	if n := s.users(s.acc); n != 1 {
		t.Errorf("got %d users, want 1", n)
	}
}
