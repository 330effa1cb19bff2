package dashboard_test

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"github.com/limitkeeper/limitkeeper/core/service"
)

var livePart = regexp.MustCompile(`hx-get="([^"]+part=history[^"]*)"`)

// live returns the URL of the refresh of a history.
func (a answer) live(t *testing.T) string {
	t.Helper()
	m := livePart.FindStringSubmatch(a.body)
	if m == nil {
		t.Fatalf("%s: no live history\n%s", a.path, a.body)
	}
	return strings.ReplaceAll(m[1], "&amp;", "&")
}

// The history of a user and of a key lists the newest request first. The first page refreshes itself.
func TestHistory(t *testing.T) {
	s := newSite(t)
	k, secret := s.customer(s.acc, "Some", 30)
	for i := range 32 {
		s.makeRequests(s.acc, secret, fmt.Sprintf("/n/%d<", i), 1)
	}
	if _, err := s.svc.Validate(context.Background(), s.acc.ID, service.Request{Secret: secret, Endpoint: "/dear", Method: "PUT", Cost: 5}); err != nil {
		t.Fatal(err)
	}
	b := s.signedIn("Acme")
	user, key := fmt.Sprintf("/dashboard/users/%d", k.UserID), "/dashboard/keys/"+k.ID

	p := b.get(user).want(t, 200, "1–25 of 33", "/n/31&lt;", "PUT", "cost 5", "in requests, each with its cost", "192.0.2.7", ">denied<", ">allowed<", key, "Some key", `href="`+user+`?page=2#history"`, "quota: 30 of 30 requests a month, the plan&#39;s limit")
	p.without(t, "/n/3&lt;", "/n/31<")
	if strings.Index(p.body, "/dear") > strings.Index(p.body, "/n/31") {
		t.Error("want the newest request first")
	}
	b.get(user+"?page=2").want(t, 200, "26–33 of 33", "/n/0&lt;").without(t, "hx-get", "Live")

	p = b.get(key)
	p.want(t, 200, "/n/31&lt;").without(t, "Some key</a>")
	live := p.live(t)
	if got := b.get(live); got.status != 204 {
		t.Errorf("nothing is new: got status %d, want 204", got.status)
	}
	s.makeRequests(s.acc, secret, "/newest", 1)
	b.get(live).wantFragment(t, "/newest", "1–25 of 34", `hx-trigger="every 2s"`)

	if err := s.svc.DeleteKey(context.Background(), s.acc.ID, k.ID); err != nil {
		t.Fatal(err)
	}
	b.get(user).want(t, 200, "deleted").without(t, key)
}

// An unused key has an empty history. A key of another account gets 404.
func TestHistoryOfNothing(t *testing.T) {
	s := newSite(t)
	k, _ := s.customer(s.acc, "Idle", 1)
	other := s.account("Other")
	foreign, secret := s.customer(other, "Foreign", 1)
	s.makeRequests(other, secret, "/foreign", 1)
	b := s.signedIn("Acme")
	b.get("/dashboard/users/1").want(t, 200, "No recent requests").without(t, "/foreign")
	b.get("/dashboard/keys/"+k.ID+"?part=history").wantFragment(t, "No recent requests")
	b.get("/dashboard/keys/"+foreign.ID+"?part=history").want(t, 404)
}

// In a browser new requests appear without a reload, while the checkbox is on.
func TestLiveHistory(t *testing.T) {
	s := newSite(t)
	k, secret := s.customer(s.acc, "Some", 100)
	ctx := chrome(t)
	do := func(steps ...step) {
		t.Helper()
		if err := chromedp.Do(ctx, steps...); err != nil {
			t.Fatal(err)
		}
	}
	shows := func(n int) step {
		return until(fmt.Sprintf(`document.querySelectorAll("#history tbody tr").length === %d`, n))
	}
	do(s.signIn("Acme"), chromedp.Navigate(s.url+"/dashboard/keys/"+k.ID), chromedp.WaitVisible(chromedp.CSS("#history")))
	s.makeRequests(s.acc, secret, "/one", 1)
	do(shows(1), chromedp.Click(chromedp.CSS("#history label")))
	s.makeRequests(s.acc, secret, "/two", 1)
	do(chromedp.Sleep(2500*time.Millisecond), shows(1), chromedp.Click(chromedp.CSS("#history label")), shows(2))
}
