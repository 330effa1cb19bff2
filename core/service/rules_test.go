package service_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/secrets"
	"github.com/limitkeeper/limitkeeper/core/service"
	"github.com/limitkeeper/limitkeeper/storage/memstore"
)

// fieldOf returns the field of an error.
func fieldOf(err error) string {
	if e, ok := errors.AsType[*core.Error](err); ok {
		return e.Field
	}
	return ""
}

func object(s string) core.Optional[json.RawMessage] { return core.Some(json.RawMessage(s)) }

// Invalid input is refused with an error that names the member, and nothing is stored.
func TestUserRules(t *testing.T) {
	now := at("2026-03-05T10:00:00Z")
	s := newService(&now)
	tests := []struct {
		name  string
		patch core.UserPatch
		field string
	}{
		{"no name", core.UserPatch{}, "name"},
		{"blank name", core.UserPatch{Name: new("  ")}, "name"},
		{"long name", core.UserPatch{Name: new(longer(255))}, "name"},
		{"line feed in the name", core.UserPatch{Name: new("a\nb")}, "name"},
		{"NUL in the name", core.UserPatch{Name: new("a\x00b")}, "name"},
		{"email without domain", core.UserPatch{Name: new("a"), Email: core.Some("nobody")}, "email"},
		{"email with display name", core.UserPatch{Name: new("a"), Email: core.Some("A <a@example.com>")}, "email"},
		{"empty email", core.UserPatch{Name: new("a"), Email: core.Some("")}, "email"},
		{"long email", core.UserPatch{Name: new("a"), Email: core.Some(strings.Repeat("a", 250) + "@b.example")}, "email"},
		{"email with a line feed", core.UserPatch{Name: new("a"), Email: core.Some("a@example.com\n")}, "email"},
		{"blank external id", core.UserPatch{Name: new("a"), ExternalID: core.Some(" ")}, "external_id"},
		{"long external id", core.UserPatch{Name: new("a"), ExternalID: core.Some(strings.Repeat("é", 256))}, "external_id"},
		{"external id that is not UTF-8", core.UserPatch{Name: new("a"), ExternalID: core.Some("a\xff")}, "external_id"},
		{"external id that is a secret", core.UserPatch{Name: new("a"), ExternalID: core.Some(secrets.NewUserSecret(secrets.DefaultKeyPrefix))}, "external_id"},
		{"line feed in the external id", core.UserPatch{Name: new("a"), ExternalID: core.Some("a\nb")}, "external_id"},
		{"metadata is a list", core.UserPatch{Name: new("a"), Metadata: object("[1]")}, "metadata"},
		{"long metadata", core.UserPatch{Name: new("a"), Metadata: object(`{"a":"` + strings.Repeat("x", 4096) + `"}`)}, "metadata"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := s.CreateUser(t.Context(), account(t, s), tt.patch)
			if core.ErrorCode(err) != core.CodeValidation || fieldOf(err) != tt.field {
				t.Errorf("err = %v, want a validation error of %q", err, tt.field)
			}
		})
	}
	if _, n, _ := s.Users(t.Context(), account(t, s), core.UserFilter{}, first); n != 0 {
		t.Errorf("%d users were created from invalid input", n)
	}
}

// account returns the account of the tests, created at the first call.
func account(t *testing.T, s *service.Service) string {
	t.Helper()
	a, err := s.AccountByName(t.Context(), "acme")
	if err != nil {
		a, _, _, err = s.CreateAccount(t.Context(), "acme")
	}
	if err != nil {
		t.Fatal(err)
	}
	return a.ID
}

func TestUserPatchLeavesTheRest(t *testing.T) {
	now := at("2026-03-05T10:00:00Z")
	s := newService(&now)
	acct := account(t, s)
	u, err := s.CreateUser(t.Context(), acct, core.UserPatch{Name: new(" Ann "), Email: core.Some("Ann@Example.com"), Metadata: object(`{ "tier" : 1 }`)})
	if err != nil {
		t.Fatal(err)
	}
	if u.ID != 1 || u.Name != "Ann" || *u.Email != "Ann@Example.com" || string(u.Metadata) != `{"tier":1}` {
		t.Errorf("created %+v", u)
	}
	if _, err := s.CreateUser(t.Context(), acct, core.UserPatch{Name: new("b"), Email: core.Some("ann@EXAMPLE.com")}); !errors.Is(err, core.ErrDuplicateEmail) {
		t.Errorf("the same email in another case: %v, want %v", err, core.ErrDuplicateEmail)
	}
	u, err = s.UpdateUser(t.Context(), acct, 1, core.UserPatch{Disabled: new(true)})
	if err != nil || u.Name != "Ann" || u.Email == nil || !u.Disabled {
		t.Errorf("updated %+v, %v", u, err)
	}
	if !u.UpdatedAt.After(u.CreatedAt) {
		t.Errorf("updated at %v, created at %v: want a later time although the clock stands", u.UpdatedAt, u.CreatedAt)
	}
	u, err = s.UpdateUser(t.Context(), acct, 1, core.UserPatch{Email: core.Null[string](), Metadata: core.Null[json.RawMessage]()})
	if err != nil || u.Email != nil || u.Metadata != nil {
		t.Errorf("cleared %+v, %v", u, err)
	}
	if _, err := s.CreateUser(t.Context(), acct, core.UserPatch{Name: new("b"), Email: core.Some("ann@EXAMPLE.com")}); err != nil {
		t.Errorf("the former email of another user: %v", err)
	}
}

// An external id is trimmed, compared byte by byte, unique in the account, and free again when its user gives it up.
func TestExternalID(t *testing.T) {
	now := at("2026-03-05T10:00:00Z")
	s := newService(&now)
	acct := account(t, s)
	create := func(id, email string) (*core.User, error) {
		return s.CreateUser(t.Context(), acct, core.UserPatch{Name: new("a"), ExternalID: core.Some(id), Email: core.Some(email)})
	}
	for i, id := range []string{"cus_A", "cus_a", strings.Repeat("é", 255)} {
		u, err := create(" "+id+"\t", fmt.Sprintf("user%d@example.com", i+1))
		if err != nil || u.ExternalID != id {
			t.Fatalf("%q: got %+v, %v", id, u, err)
		}
	}
	if _, err := create("cus_A", "new@example.com"); !errors.Is(err, core.ErrDuplicateExternalID) || core.ErrorCode(err) != core.CodeValidation || fieldOf(err) != "external_id" {
		t.Errorf("the external id of another user: %v, want %v", err, core.ErrDuplicateExternalID)
	}
	u, err := s.UpdateUser(t.Context(), acct, 1, core.UserPatch{Name: new("b")})
	if err != nil || u.ExternalID != "cus_A" {
		t.Errorf("updated %+v, %v", u, err)
	}
	for _, tc := range []struct {
		f    core.UserFilter
		page int
		want string
	}{
		{core.UserFilter{ExternalID: "cus_A"}, 1, "[1] of 1"},
		{core.UserFilter{ExternalID: "CUS_A"}, 1, "[] of 0"},
		{core.UserFilter{ExternalID: "cus_A", Email: "USER1@example.com"}, 1, "[1] of 1"},
		{core.UserFilter{ExternalID: "cus_A", Email: "user1@example.com"}, 2, "[] of 1"},
		{core.UserFilter{ExternalID: "cus_a", Email: "user1@example.com"}, 1, "[] of 0"},
		{core.UserFilter{ExternalID: "cus_", Email: "user1@example.com"}, 1, "[] of 0"},
	} {
		list, n, err := s.Users(t.Context(), acct, tc.f, core.Page{Number: tc.page, Size: 10})
		ids := []int64{}
		for _, u := range list {
			ids = append(ids, u.ID)
		}
		if got := fmt.Sprintf("%d of %d", ids, n); got != tc.want || err != nil {
			t.Errorf("%+v, page %d: got %s, %v, want %s", tc.f, tc.page, got, err, tc.want)
		}
	}
	if u, err = s.UpdateUser(t.Context(), acct, 1, core.UserPatch{ExternalID: core.Null[string]()}); err != nil || u.ExternalID != "" {
		t.Errorf("cleared %+v, %v", u, err)
	}
	if _, err := create("cus_A", "user1@example.com"); !errors.Is(err, core.ErrDuplicateEmail) {
		t.Errorf("a free external id and the email of another user: %v, want %v", err, core.ErrDuplicateEmail)
	}
	if _, err := create("cus_A", "new@example.com"); err != nil {
		t.Errorf("the former external id of another user: %v", err)
	}
}

func TestPlanRules(t *testing.T) {
	now := at("2026-03-05T10:00:00Z")
	s := newService(&now)
	full := func(change func(*core.PlanPatch)) core.PlanPatch {
		p := core.PlanPatch{Name: new("basic"), Limit: core.Some(int64(10)), Period: new("day")}
		change(&p)
		return p
	}
	tests := []struct {
		name  string
		patch core.PlanPatch
		field string
	}{
		{"no name", full(func(p *core.PlanPatch) { p.Name = nil }), "name"},
		{"no limit", full(func(p *core.PlanPatch) { p.Limit = core.Optional[int64]{} }), "max_requests"},
		{"no period", full(func(p *core.PlanPatch) { p.Period = nil }), "request_period"},
		{"limit of 0", full(func(p *core.PlanPatch) { p.Limit = core.Some(int64(0)) }), "max_requests"},
		{"limit below 0", full(func(p *core.PlanPatch) { p.Limit = core.Some(int64(-1)) }), "max_requests"},
		{"limit too large", full(func(p *core.PlanPatch) { p.Limit = core.Some(int64(core.MaxLimit + 1)) }), "max_requests"},
		{"unknown period", full(func(p *core.PlanPatch) { p.Period = new("hour") }), "request_period"},
		{"long description", full(func(p *core.PlanPatch) { p.Description = core.Some(longer(4096)) }), "description"},
		{"many features", full(func(p *core.PlanPatch) { p.Features = core.Some(make([]string, 101)) }), "features"},
		{"long feature", full(func(p *core.PlanPatch) { p.Features = core.Some([]string{longer(255)}) }), "features"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := s.CreatePlan(t.Context(), account(t, s), tt.patch)
			if core.ErrorCode(err) != core.CodeValidation || fieldOf(err) != tt.field {
				t.Errorf("err = %v, want a validation error of %q", err, tt.field)
			}
		})
	}
	pl, err := s.CreatePlan(t.Context(), account(t, s), full(func(p *core.PlanPatch) { p.Limit = core.Some(int64(core.MaxLimit)) }))
	if err != nil || pl.Limit != core.MaxLimit || pl.Inactive {
		t.Errorf("the largest limit: %+v, %v", pl, err)
	}
	if _, err := s.UpdatePlan(t.Context(), account(t, s), pl.ID, core.PlanPatch{Limit: core.Some(int64(0))}); fieldOf(err) != "max_requests" {
		t.Errorf("an update to 0: %v", err)
	}
}

func TestKeyRules(t *testing.T) {
	now := at("2026-03-05T10:00:00Z")
	s := newService(&now)
	acct := account(t, s)
	pl, _ := s.CreatePlan(t.Context(), acct, core.PlanPatch{Name: new("basic"), Limit: core.Some(int64(10)), Period: new("day")})
	u, _ := s.CreateUser(t.Context(), acct, core.UserPatch{Name: new("ann")})
	full := func(change func(*core.KeyPatch)) core.KeyPatch {
		p := core.KeyPatch{Name: new("k"), UserID: &u.ID, PlanID: core.Some(pl.ID)}
		change(&p)
		return p
	}
	tests := []struct {
		name  string
		patch core.KeyPatch
		code  core.Code
		field string
	}{
		{"no name", full(func(p *core.KeyPatch) { p.Name = nil }), core.CodeValidation, "name"},
		{"no user", full(func(p *core.KeyPatch) { p.UserID = nil }), core.CodeValidation, "user_id"},
		{"no plan", full(func(p *core.KeyPatch) { p.PlanID = core.Optional[string]{} }), core.CodeValidation, "plan_id"},
		{"unknown user", full(func(p *core.KeyPatch) { p.UserID = new(int64(99)) }), core.CodeUserNotFound, ""},
		{"unknown plan", full(func(p *core.KeyPatch) { p.PlanID = core.Some("plan_x") }), core.CodePlanNotFound, ""},
		{"unknown status", full(func(p *core.KeyPatch) { p.Status = new("paused") }), core.CodeValidation, "status"},
		{"expires now", full(func(p *core.KeyPatch) { p.ExpiresAt = core.Some(now) }), core.CodeValidation, "expires_at"},
		{"metadata is a string", full(func(p *core.KeyPatch) { p.Metadata = object(`"a"`) }), core.CodeValidation, "metadata"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, _, err := s.CreateKey(t.Context(), acct, tt.patch)
			if core.ErrorCode(err) != tt.code || fieldOf(err) != tt.field {
				t.Errorf("err = %v, want %s of %q", err, tt.code, tt.field)
			}
		})
	}
	if _, n, _ := s.Keys(t.Context(), acct, core.KeyFilter{}, first); n != 0 {
		t.Errorf("%d keys were created from invalid input", n)
	}
}

// The number of earlier values that work at the same time is bounded. A regeneration without grace
// ends them all.
func TestRegenerateGraceIsBounded(t *testing.T) {
	now := at("2026-03-05T10:00:00Z")
	s := newService(&now)
	acct := account(t, s)
	pl, _ := s.CreatePlan(t.Context(), acct, core.PlanPatch{Name: new("basic"), Limit: core.Some(int64(1000)), Period: new("day")})
	u, _ := s.CreateUser(t.Context(), acct, core.UserPatch{Name: new("ann"), PlanID: core.Some(pl.ID)})
	k, secret, err := s.CreateKey(t.Context(), acct, core.KeyPatch{Name: new("k"), UserID: &u.ID})
	if err != nil {
		t.Fatal(err)
	}
	secrets := []string{secret}
	for range 16 {
		_, secret, err := s.RegenerateKey(t.Context(), acct, k.ID, time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		secrets = append(secrets, secret)
	}
	if _, _, err := s.RegenerateKey(t.Context(), acct, k.ID, time.Hour); fieldOf(err) != "grace_seconds" {
		t.Errorf("the 17th value in grace: %v, want an error of grace_seconds", err)
	}
	outcomes := func() (allowed int) {
		for _, secret := range secrets {
			d, err := s.Validate(t.Context(), acct, service.Request{Secret: secret, Endpoint: "/", Method: "GET", Cost: 1})
			if err != nil {
				t.Fatal(err)
			}
			if d.Allowed() {
				allowed++
			}
		}
		return allowed
	}
	if got := outcomes(); got != 17 {
		t.Errorf("%d of 17 values work, want all", got)
	}
	_, last, err := s.RegenerateKey(t.Context(), acct, k.ID, 0)
	if err != nil {
		t.Fatal(err)
	}
	secrets = append(secrets, last)
	if got := outcomes(); got != 1 {
		t.Errorf("%d values work after a regeneration without grace, want the new one", got)
	}
}

// A plan that was accepted at the bound of its bytes can be changed and restored, whatever its number.
func TestPlanAtBound(t *testing.T) {
	store := memstore.New()
	svc := service.New(store, service.Config{})
	c := newTenant(t, svc, "acme")
	for range 120 { // so that the number has more digits
		_, err := svc.CreatePlan(t.Context(), c.id, core.PlanPatch{Name: new("p"), Limit: core.Null[int64]()})
		c.ok(err)
	}
	features := slices.Repeat([]string{strings.Repeat("f", 130)}, 100)
	var last *core.Plan
	for n := 1; n <= 4000; n++ { // one byte more each time, until the plan is refused
		p, err := svc.CreatePlan(t.Context(), c.id, core.PlanPatch{Name: new("p"), Limit: core.Null[int64](), Features: core.Some(features), Description: core.Some(strings.Repeat("d", n))})
		if err != nil {
			break
		}
		last = p
	}
	if last == nil || len(*last.Description) == 4000 {
		t.Fatal("no plan is at the bound")
	}
	c.ok(last.Check())
	_, err := svc.UpdatePlan(t.Context(), c.id, last.ID, core.PlanPatch{Name: new("q")})
	c.ok(err)
}
