package core_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/secrets"
)

// full returns an Access within all bounds, with the longest members.
func full(t *testing.T) core.Access {
	t.Helper()
	at := time.Date(2026, time.November, 28, 23, 59, 59, 123456789, time.UTC)
	link := func(i int) core.SignInLink {
		return core.SignInLink{Digest: secrets.DigestOf(fmt.Sprint(i)), ExpiresAt: at}
	}
	phc := secrets.NewPHC()
	phc.Salt = make([]byte, 64)
	ac := core.Access{Password: phc.String()}
	for i := range core.MaxLinks {
		ac.Links = append(ac.Links, link(i))
	}
	for i := range core.MaxPeople {
		ac.People = append(ac.People, core.Person{ID: core.PersonIDPrefix + fmt.Sprintf("%020d", i), Name: strings.Repeat("<", 100), Role: core.RoleSupport,
			Email: fmt.Sprintf("%02d", i) + strings.Repeat("e", 60) + "@" + strings.Repeat(strings.Repeat("d", 62)+".", 3) + "ex", Password: phc.String(),
			Invitation: new(link(i)), CreatedAt: at, SeenAt: at})
	}
	for i := range core.MaxSessions {
		se := core.Session{Digest: secrets.DigestOf(fmt.Sprint(i)), PersonID: ac.People[i%core.MaxPeople].ID, ByLink: true, CreatedAt: at, SeenAt: at, FormsAfter: at,
			Address: "ffff:ffff:ffff:ffff:ffff:ffff:255.255.255.255", UserAgent: core.CleanUserAgent(strings.Repeat("Mozilla/5.0 <script> ", 100))}
		for n := range core.MaxSpentForms {
			se.SpentForms = append(se.SpentForms, core.FormToken{ID: fmt.Sprintf("%022d", n), At: at})
		}
		ac.Sessions = append(ac.Sessions, se)
	}
	for i := range core.MaxBrowsers {
		ac.Browsers = append(ac.Browsers, core.Browser{Digest: secrets.DigestOf(fmt.Sprint(i)), SeenAt: at, PersonID: ac.People[i%core.MaxPeople].ID})
	}
	return ac
}

// The record of an account within all bounds fits into each store and into an archive.
func TestLargestAccess(t *testing.T) {
	ac := full(t)
	if err := ac.Check(); err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(ac)
	if err != nil {
		t.Fatal(err)
	}
	if most := 250 << 10; len(text) > most {
		t.Errorf("got %d bytes, want at most %d", len(text), most)
	}
}

// A stored person that breaks a rule is refused.
func TestPersonCheck(t *testing.T) {
	for name, damage := range map[string]func(*core.Access){
		"too many people":                func(ac *core.Access) { ac.People = append(ac.People, ac.People[0]) },
		"an email twice":                 func(ac *core.Access) { ac.People[1].Email = strings.ToUpper(ac.People[0].Email) },
		"an id twice":                    func(ac *core.Access) { ac.People[1].ID = ac.People[0].ID },
		"no id":                          func(ac *core.Access) { ac.People[1].ID = "" },
		"an email that is none":          func(ac *core.Access) { ac.People[1].Email = "nobody" },
		"a validator":                    func(ac *core.Access) { ac.People[1].Role = core.RoleValidator },
		"a name with a control":          func(ac *core.Access) { ac.People[1].Name = "a\x00" },
		"a password that is no hash":     func(ac *core.Access) { ac.People[1].Password = "secret" },
		"a session of nobody":            func(ac *core.Access) { ac.Sessions[0].PersonID = "person_x" },
		"a browser of nobody":            func(ac *core.Access) { ac.Browsers[0].PersonID = "person_x" },
		"a User-Agent with a control":    func(ac *core.Access) { ac.Sessions[0].UserAgent = "a\n" },
		"a long address":                 func(ac *core.Access) { ac.Sessions[0].Address = strings.Repeat("1", 65) },
		"an email with space at its end": func(ac *core.Access) { ac.People[1].Email += " " },
	} {
		ac := full(t)
		damage(&ac)
		if core.ErrorCode(ac.Check()) != core.CodeValidation {
			t.Errorf("%s: got %v, want a validation error", name, ac.Check())
		}
	}
}

// Above the bounds of a person the own oldest session is dropped, so that one person does not end the sessions of the others.
func TestSessionBounds(t *testing.T) {
	at := time.Date(2026, time.November, 28, 12, 0, 0, 0, time.UTC)
	var ac core.Access
	add := func(person string, n int) {
		ac.AddSession(core.Session{Digest: secrets.DigestOf(fmt.Sprint(person, n)), PersonID: person, SeenAt: at.Add(time.Duration(n) * time.Minute)})
	}
	count := func(person string) (n int) {
		for _, se := range ac.Sessions {
			if se.PersonID == person {
				n++
			}
		}
		return n
	}
	add("a", -1)
	for n := range 3 * core.MaxSessionsEach {
		add("b", n)
	}
	if a, b := count("a"), count("b"); a != 1 || b != core.MaxSessionsEach {
		t.Errorf("got %d and %d sessions, want 1 and %d", a, b, core.MaxSessionsEach)
	}
	for n := range core.MaxSessions {
		add(fmt.Sprint("c", n), 100+n)
	}
	if n := len(ac.Sessions); n != core.MaxSessions || count("a") != 0 || count("c0") != 1 {
		t.Errorf("got %d sessions in all, %d of a and %d of c0, want %d, 0 and 1", n, count("a"), count("c0"), core.MaxSessions)
	}
}

// Each role has exactly the permissions of its column, and a refusal names the roles that have the permission.
func TestRoleMay(t *testing.T) {
	all := []core.Permission{core.PermitNothing, core.PermitValidate, core.PermitHold, core.PermitRead, core.PermitSupport, core.PermitEdit, core.PermitOwn}
	for role, want := range map[core.Role][]bool{
		core.RoleValidator: {true, true, true, false, false, false, false},
		core.RoleViewer:    {true, false, true, true, false, false, false},
		core.RoleSupport:   {true, false, true, true, true, false, false},
		core.RoleEditor:    {true, true, true, true, true, true, false},
		core.RoleOwner:     {true, true, true, true, true, true, true},
		"":                 {true, false, false, false, false, false, false},
		"admin":            {true, false, false, false, false, false, false},
	} {
		for i, p := range all {
			if got := role.May(p); got != want[i] {
				t.Errorf("%q, permission %d: got %v, want %v", role, p, got, want[i])
			}
			if err := role.Require(p); (err == nil) != want[i] || err != nil && core.ErrorCode(err) != core.CodeForbidden {
				t.Errorf("%q, permission %d: got %v", role, p, err)
			}
		}
	}
	if got, want := core.RoleViewer.Require(core.PermitOwn).Error(), "FORBIDDEN: The role viewer may not do this: it needs the role owner"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
