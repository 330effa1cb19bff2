package dashboard_test

import (
	"context"
	"regexp"
	"strings"
	"testing"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/service"
)

// customer makes a plan, a user and a key of an account, all with names of one kind, and
// returns the key with its secret.
func (s *site) customer(account *core.Account, name string, limit int64) (*core.Key, string) {
	s.Helper()
	ctx := context.Background()
	pl, err := s.svc.CreatePlan(ctx, account.ID, core.PlanPatch{Name: new(name + " plan"), Limit: core.Some(limit), Period: new("month")})
	if err != nil {
		s.Fatal(err)
	}
	u, err := s.svc.CreateUser(ctx, account.ID, core.UserPatch{Name: new(name + " user"), PlanID: core.Some(pl.ID)})
	if err != nil {
		s.Fatal(err)
	}
	k, secret, err := s.svc.CreateKey(ctx, account.ID, core.KeyPatch{Name: new(name + " key"), UserID: &u.ID})
	if err != nil {
		s.Fatal(err)
	}
	return k, secret
}

// makeRequests makes so many requests with a key.
func (s *site) makeRequests(account *core.Account, secret, endpoint string, times int) {
	s.Helper()
	for range times {
		if _, err := s.svc.Validate(context.Background(), account.ID,
			service.Request{Secret: secret, Endpoint: endpoint, Method: "GET", IP: "192.0.2.7", Cost: 1}); err != nil {
			s.Fatal(err)
		}
	}
}

// A part of a page is not a page.
func (a answer) wantFragment(t *testing.T, texts ...string) {
	t.Helper()
	a.want(t, 200, texts...)
	if strings.Contains(a.body, "<html") || strings.Contains(a.body, "<main") {
		t.Errorf("%s: want a part of the page, got a page\n%s", a.path, a.body)
	}
}

// without fails when a page holds one of the texts.
func (a answer) without(t *testing.T, texts ...string) {
	t.Helper()
	for _, text := range texts {
		if strings.Contains(a.body, text) {
			t.Errorf("%s: want no %q on the page, got\n%s", a.path, text, a.body)
		}
	}
}

// An empty account is redirected to the quick start.
func TestOverviewOfEmptyAccount(t *testing.T) {
	s := newSite(t)
	b := s.signedIn("Acme")
	if p := b.get("/dashboard/"); p.path != "/dashboard/start" {
		t.Errorf("got %s, want the quick start", p.path)
	}
	if _, err := s.svc.CreatePlan(context.Background(), s.acc.ID, core.PlanPatch{Name: new("Free"), Limit: core.Some(int64(1)), Period: new("day")}); err != nil {
		t.Fatal(err)
	}
	if p := b.get("/dashboard/").want(t, 200, "No requests in these days", "No user or key has used half of a limit"); p.path != "/dashboard/" {
		t.Errorf("with a plan: got %s, want the overview", p.path)
	}
}

// The overview has the number of users, keys and plans, and the counters near their limit, of this account
// only.
func TestOverview(t *testing.T) {
	s := newSite(t)
	other := s.account("Other")
	_, foreign := s.customer(other, "Foreign", 10)
	s.makeRequests(other, foreign, "/foreign", 7)
	_, low := s.customer(s.acc, "Low", 30)
	_, little := s.customer(s.acc, "Little", 100)
	_, full := s.customer(s.acc, "Full <b>", 4)
	s.customer(s.acc, "Idle", 10)
	s.makeRequests(s.acc, low, "/", 20)
	s.makeRequests(s.acc, full, "/", 6)
	s.makeRequests(s.acc, little, "/", 20)

	b := s.signedIn("Acme")
	p := b.get("/dashboard/").want(t, 200, "<b>4</b>", "<b>44</b>", "<b>2</b>", // users and so on, allowed, denied
		"Full &lt;b&gt; user", "Low user", ">of 30<", `aria-valuenow="100"`, `aria-valuenow="66.67"`, "20 of 30 used")
	p.without(t, "Foreign", "Idle", "Little", "Full <b>")
	if strings.Index(p.body, "Full &lt;b&gt; user") > strings.Index(p.body, "Low user") {
		t.Error("want the counter nearest to its limit first")
	}
	b.get("/dashboard/?part=tiles&days=90").wantFragment(t, "<b>44</b>", "days=90")
	b.get("/dashboard/?part=near-limit").wantFragment(t, "Low user", `hx-trigger="every 10s"`)
	b.get("/dashboard/?part=near-limit").without(t, "Foreign", "tile")
}

var linked = regexp.MustCompile(`(?:href|src)="(/dashboard/assets/[^"]+)"`)

// The first page and its assets stay below a size in bytes.
func TestWeight(t *testing.T) {
	s := newSite(t)
	s.filled()
	b := s.signedIn("Acme")
	page := b.get("/dashboard/")
	sum, seen := len(page.body), map[string]bool{}
	for _, m := range linked.FindAllStringSubmatch(page.body, -1) {
		if !seen[m[1]] {
			seen[m[1]] = true
			sum += len(b.get(m[1]).want(t, 200).body)
		}
	}
	if len(seen) < 4 {
		t.Errorf("got %d assets, want style, two scripts and an icon", len(seen))
	}
	if sum >= 100_000 {
		t.Errorf("the first page takes %d bytes, want less than 100,000", sum)
	}
	t.Logf("%d bytes", sum)
}
