package dashboard_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"

	"github.com/limitkeeper/limitkeeper/core"
)

// screenshots is the variable that names the folder for pictures of the pages.
const screenshots = "LIMITKEEPER_SCREENSHOTS"

// chrome starts a real browser, which ends with the test.
func chrome(t testing.TB) context.Context {
	t.Helper()
	path := ""
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if p, err := exec.LookPath(name); err == nil {
			path = p
			break
		}
	}
	if path == "" {
		t.Fatal("no chromium is installed: `make deps` installs it")
	}
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(path), chromedp.NoSandbox,
		chromedp.Flag("ignore-certificate-errors", true), chromedp.Flag("disable-dev-shm-usage", true))
	ctx, cancel := chromedp.NewExecAllocator(context.Background(), options...)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewContext(ctx)
	t.Cleanup(cancel)
	ctx, cancel = context.WithTimeout(ctx, 6*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// step is what a browser does.
type step = chromedp.Action[chromedp.Void]

// signIn makes the browser sign in to an account.
func (s *site) signIn(account string) step {
	s.Helper()
	return chromedp.Steps(chromedp.Navigate(s.url+"/dashboard/sign-in?link="+s.link(account)),
		chromedp.Click(chromedp.CSS("button[type=submit]")), chromedp.WaitVisible(chromedp.CSS(".side")))
}

// until waits for something to be true on the page.
func until(expression string) step {
	return chromedp.Func(func(ctx context.Context, t *chromedp.Target) error {
		for {
			if is, err := chromedp.Evaluate[bool](expression)(ctx, t); err != nil || is {
				return err
			}
			select {
			case <-ctx.Done():
				return fmt.Errorf("%s: %w", expression, ctx.Err())
			case <-time.After(50 * time.Millisecond):
			}
		}
	})
}

// view is how a page is looked at.
type view struct {
	name          string
	width, height int64
	dark          bool
}

// views are the ways in which pages are looked at. Without pictures two of them show each
// width and each scheme.
func views() []view {
	all := []view{
		{"desktop-light", 1280, 860, false}, {"phone-dark", 390, 844, true},
		{"desktop-dark", 1280, 860, true}, {"phone-light", 390, 844, false},
	}
	if os.Getenv(screenshots) == "" {
		return all[:2]
	}
	return all
}

// as makes the browser show pages that way.
func (v view) as() step {
	scheme := "light"
	if v.dark {
		scheme = "dark"
	}
	return chromedp.Func(func(ctx context.Context, t *chromedp.Target) error {
		if _, err := chromedp.EmulateViewport(v.width, v.height)(ctx, t); err != nil {
			return err
		}
		_, err := cdp.Call(ctx, t, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
			Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}})
		return err
	})
}

// fits fails when a page is wider than the screen.
func fits() step {
	return chromedp.Func(func(ctx context.Context, _ *chromedp.Target) error {
		over, err := chromedp.Run(ctx, chromedp.Evaluate[int](`document.documentElement.scrollWidth - innerWidth`))
		if err == nil && over > 0 {
			err = fmt.Errorf("the page is %d pixels wider than the screen", over)
		}
		return err
	})
}

// picture writes a picture of the page as it is, when a folder for them is named.
func picture(name string, v view) step {
	return chromedp.Func(func(ctx context.Context, t *chromedp.Target) error {
		dir := os.Getenv(screenshots)
		if dir == "" {
			return nil
		}
		png, err := chromedp.FullScreenshot(100)(ctx, t)
		if err != nil {
			return err
		}
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(dir, name+"-"+v.name+".png"), png, 0o644)
	})
}

// everyPage are the pages, by the name of their picture. An id stands for the first of its
// kind.
func (s *site) everyPage() map[string]string {
	s.Helper()
	user, key := s.samples()
	s.invite("newcomer", core.RoleViewer)
	ann, _ := s.person("ann", core.RoleOwner)
	hook, err := s.svc.CreateWebhook(context.Background(), s.acc.ID, core.WebhookPatch{URL: new("https://example.com/hook?team=sales"), Description: core.Some("Sales")})
	if err != nil {
		s.Fatal(err)
	}
	if err := s.svc.LogAttempt(context.Background(), s.acc.ID, &core.Attempt{Webhook: hook.ID, EventID: "evt_1", Type: core.EventTest, At: s.now(), Attempt: 1, Status: 500, Problem: "The receiver has answered 500"}); err != nil {
		s.Fatal(err)
	}
	of := "users/" + strconv.FormatInt(user.ID, 10)
	return map[string]string{
		"overview": "", "users": "users", "keys": "keys", "plans": "plans", "prices": "prices", "edit-prices": "prices/edit", "owner-keys": "owner-keys", "start": "start", "settings": "settings",
		"people": "people", "new-person": "people/new", "person-role": "people/" + ann.ID + "/role", "remove-person": "people/" + ann.ID + "/remove",
		"webhooks": "webhooks", "webhook": "webhooks/" + hook.ID, "new-webhook": "webhooks/new", "edit-webhook": "webhooks/" + hook.ID + "/edit",
		"rotate-webhook": "webhooks/" + hook.ID + "/rotate", "delete-webhook": "webhooks/" + hook.ID + "/delete",
		"audit": "audit", "audit-search": "audit?action=key&from=2020-01-31", "audit-none": "audit?actor=nobody", "audit-last": "audit?page=2",
		"new-plan": "plans/new", "new-owner-key": "owner-keys/new",
		"users-search": "users?q=customer%201&plan=" + user.PlanID, "users-none": "users?q=nobody", "users-last": "users?page=3",
		"user": of, "edit-user": of + "/edit", "delete-user": of + "/delete", "new-user": "users/new",
		"keys-search": "keys?q=prod&status=inactive", "new-key": "keys/new", "new-key-of-user": "keys/new?user=" + strconv.FormatInt(user.ID, 10),
		"key": "keys/" + key.ID, "edit-key": "keys/" + key.ID + "/edit", "regenerate-key": "keys/" + key.ID + "/regenerate", "delete-key": "keys/" + key.ID + "/delete",
	}
}

// samples returns a user and a key that have everything that can be shown of them.
func (s *site) samples() (*core.User, *core.Key) {
	s.Helper()
	ctx := context.Background()
	u, err := s.svc.UpdateUser(ctx, s.acc.ID, 4, core.UserPatch{Metadata: core.Some(json.RawMessage(`{"customer": "A-17", "seats": 12}`))})
	if err != nil {
		s.Fatal(err)
	}
	_, err = s.svc.SetPrices(ctx, s.acc.ID, []core.PriceRule{{Endpoint: "POST,PUT /v1/search*", Costs: map[string]core.Price{"requests": "10"}},
		{Endpoint: "/v1/chat/completions", Model: "gpt-4o-mini*", Costs: map[string]core.Price{"tokens": "input + output", "spend": "15*input + 8*cached + 60*output"}}})
	if err != nil {
		s.Fatal(err)
	}
	keys, _, err := s.svc.Keys(ctx, s.acc.ID, core.KeyFilter{UserID: u.ID}, core.Page{Number: 1, Size: 1})
	if err != nil {
		s.Fatal(err)
	}
	k, err := s.svc.UpdateKey(ctx, s.acc.ID, keys[0].ID, core.KeyPatch{Name: new("staging, with a name that is long"), Status: new("inactive"),
		PlanID: core.Some(u.PlanID), Metadata: core.Some(json.RawMessage(`{"region":"eu","note":"a line that is longer than the screen of a phone, and than that of a desk when it goes on like this for much longer than anyone reads"}`)), ExpiresAt: core.Some(s.now().Add(30 * 24 * time.Hour))})
	if err != nil {
		s.Fatal(err)
	}
	if _, err := s.svc.UpdateUser(ctx, s.acc.ID, 2, core.UserPatch{Disabled: new(true), PlanID: core.Some(u.PlanID), Name: new("A customer with a name as long as they get in real life, Limited")}); err != nil {
		s.Fatal(err)
	}
	if k, _, err = s.svc.RegenerateKey(ctx, s.acc.ID, k.ID, time.Hour); err != nil {
		s.Fatal(err)
	}
	return u, k
}

// Every page renders in a browser, light and dark, on phone and desktop sizes, without accessibility
// violations.
func TestPictures(t *testing.T) {
	s := newSite(t)
	s.filled()
	ctx := chrome(t)
	look := func(name string, steps ...step) {
		t.Helper()
		for _, v := range views() {
			shown := append([]step{v.as()}, steps...)
			if err := chromedp.Do(ctx, append(shown, chromedp.WaitVisible(chromedp.CSS("#main")), fits(), picture(name, v), accessible(name+", "+v.name))...); err != nil {
				t.Errorf("%s, %s: %v", name, v.name, err)
			}
		}
	}
	open := func(path string) step { return chromedp.Navigate(s.url + "/dashboard/" + path) }
	look("sign-in", open("sign-in"))
	look("sign-in-by-link", open("sign-in?link="+s.link("Acme")))
	signIn := func(account string) {
		t.Helper()
		if err := chromedp.Do(ctx, s.signIn(account)); err != nil {
			t.Fatalf("signing in: %v", err)
		}
	}
	_, invitation := s.invite("invited", core.RoleViewer)
	look("sign-in-by-invitation", open("sign-in?link="+invitation))
	newcomer := s.account("Newcomer")
	signIn("Newcomer")
	look("start-empty", open(""), chromedp.WaitVisible(chromedp.CSS(".waiting")))
	look("start-javascript", open("start"), chromedp.Click(chromedp.CSS("label[for=in-javascript]")))
	s.customer(newcomer, "First", 1000)
	look("overview-quiet", open(""), chromedp.WaitVisible(chromedp.CSS(".plot")))
	signIn("Acme")
	for name, path := range s.everyPage() {
		look(name, open(path))
	}
	look("not-found", open("nowhere"))
	for _, v := range views() {
		for _, days := range []string{"90", "365"} {
			if err := chromedp.Do(ctx, v.as(), open("?days="+days), picture("overview-"+days, v)); err != nil {
				t.Errorf("%s days, %s: %v", days, v.name, err)
			}
		}
	}
}

// A list is filtered while the user types: the field keeps the focus, and the address has the filter, so
// that the back button works.
func TestSearchWhileTyping(t *testing.T) {
	s := newSite(t)
	s.filled()
	ctx := chrome(t)
	shows := func(rows int, search string) step {
		return chromedp.Poll[chromedp.Void](fmt.Sprintf(
			`document.querySelectorAll("#list tbody tr").length === %d && document.querySelector("#q").value === %q`, rows, search),
			chromedp.WithPollingTimeout(time.Minute))
	}
	if err := chromedp.Do(ctx, s.signIn("Acme"), chromedp.Navigate(s.url+"/dashboard/users"), shows(25, ""),
		chromedp.SendKeys(chromedp.CSS("#q"), "customer 1"), shows(10, "customer 1")); err != nil {
		t.Fatal(err)
	}
	got, err := chromedp.Run(ctx, chromedp.Evaluate[string](`document.activeElement.id + " " + location.pathname + location.search`))
	if want := "q /dashboard/users?q=customer%201&plan="; err != nil || got != want {
		t.Errorf("after typing: got focus and address %q, %v, want %q", got, err, want)
	}
	if err := chromedp.Do(ctx, chromedp.SendKeys(chromedp.CSS("#plan"), "Free"), shows(4, "customer 1"),
		chromedp.NavigateBack(), shows(10, "customer 1"), chromedp.NavigateBack(), shows(25, "")); err != nil {
		t.Fatalf("choosing a plan, and going back: %v", err)
	}
}
