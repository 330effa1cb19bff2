package dashboard_test

import (
	"context"
	"encoding/pem"
	"fmt"
	"html"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/chromedp/chromedp"

	"github.com/limitkeeper/limitkeeper/core"
)

// snippet returns the text that is copied by the button of a snippet.
func (a answer) snippet(t *testing.T, id string) string {
	t.Helper()
	m := regexp.MustCompile(`(?s)<pre id="` + id + `"[^>]*>(.*?)</pre>`).FindStringSubmatch(a.body)
	if m == nil {
		t.Fatalf("%s: no snippet %q\n%s", a.path, id, a.body)
	}
	return html.UnescapeString(m[1])
}

// ownerKey makes an owner's key of the account.
func (s *site) ownerKey() string {
	s.Helper()
	_, secret, err := s.svc.CreateOwnerKey(context.Background(), s.acc.ID, core.OwnerKeySpec{Name: "quick start"})
	if err != nil {
		s.Fatal(err)
	}
	return secret
}

// shell runs commands as they are pasted, with curl trusting the site.
func (s *site) shell(commands string) string {
	s.Helper()
	ca := filepath.Join(s.TempDir(), "ca.pem")
	if err := os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.cert.Raw}), 0o600); err != nil {
		s.Fatal(err)
	}
	cmd := exec.Command("sh", "-c", commands)
	cmd.Env = append(os.Environ(), "CURL_CA_BUNDLE="+ca)
	out, err := cmd.CombinedOutput()
	if err != nil {
		s.Fatalf("%v\n%s\n%s", err, commands, out)
	}
	return string(out)
}

// The commands of the quick start work in an empty account and count a request.
func TestStartCommands(t *testing.T) {
	s := newSite(t)
	p := s.signedIn("Acme").get("/dashboard/start")
	made := strings.Replace(p.snippet(t, "make"), "lk_…", s.ownerKey(), 1)
	out := s.shell(made + p.snippet(t, "ask-curl"))
	for _, want := range []string{"The customer's key: lk_user_", `"success":true`, `"remaining":999`} {
		if !strings.Contains(out, want) {
			t.Errorf("want %s, got\n%s", want, out)
		}
	}
	if list, _, err := s.svc.UserHistory(context.Background(), s.acc.ID, 1, core.Page{Number: 1, Size: 2}); err != nil || len(list) != 1 {
		t.Errorf("got %d requests in the history and error %v, want one", len(list), err)
	}
}

// The function of the quick start counts a request.
func TestStartJavaScript(t *testing.T) {
	s := newSite(t)
	_, secret := s.customer(s.acc, "Some", 10)
	text := s.signedIn("Acme").get("/dashboard/start").snippet(t, "ask-javascript")
	expression := fmt.Sprintf(`const process = { env: { OWNER_KEY: %q } }; %s; validate(%q, "/v1/orders", "GET").then(JSON.stringify)`, s.ownerKey(), text, secret)
	ctx := chrome(t)
	if err := chromedp.Do(ctx, chromedp.Navigate(s.url+"/functions/v1/health")); err != nil {
		t.Fatal(err)
	}
	got, err := chromedp.Run(ctx, chromedp.Evaluate[string](expression, chromedp.EvalAwaitPromise))
	if err != nil || !strings.Contains(got, `"success":true`) || !strings.Contains(got, `"remaining":9`) {
		t.Errorf("got %s and error %v, want a request that is allowed, with 9 remaining", got, err)
	}
}

// A Caddyfile with the snippet names the account, whatever that is called.
func TestStartGateway(t *testing.T) {
	s := newSite(t)
	for _, name := range []string{"Acme", "Töchter & \"Söhne\"", "O'Brien <b>", "#1", `back\`, `{$HOME}`, `{env.HOME} \{}`, "a`b\\", "`ACCOUNT` {x}", "<<EOF", "{"} {
		if name != s.acc.Name {
			s.account(name)
		}
		text := s.signedIn(name).get("/dashboard/start").snippet(t, "gateway")
		blocks, err := caddyfile.Parse("Caddyfile", []byte(text))
		if err != nil {
			t.Errorf("%s: %v\n%s", name, err, text)
			continue
		}
		var words []string
		for _, token := range blocks[0].Segments[0] {
			words = append(words, token.Text)
		}
		if len(words) != 5 || words[2] != "account" {
			t.Errorf("%s: got %q, want one word after account\n%s", name, words, text)
			continue
		}
		if got, err := caddy.NewReplacer().ReplaceOrErr(words[3], true, true); err != nil || got != name {
			t.Errorf("got the account %q and error %v, want %q\n%s", got, err, name, text)
		}
	}
}

// The snippets name the server as the browser knows it, quoted.
func TestStartAddress(t *testing.T) {
	s := newSite(t)
	b := s.signedIn("Acme")
	r, err := http.NewRequest("GET", s.url+"/dashboard/start", nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range b.client.Jar.Cookies(r.URL) {
		r.AddCookie(c)
	}
	r.Host = "limits.example'$(id)"
	p := b.run(r)
	if got := s.shell("echo " + strings.Fields(p.snippet(t, "ask-curl"))[2]); got != "https://limits.example'$(id)/functions/v1/validate\n" {
		t.Errorf("got the address %s", got)
	}
}

// The quick start shows the first request and its user.
func TestStartWaits(t *testing.T) {
	s := newSite(t)
	other := s.account("Other")
	_, foreign := s.customer(other, "Foreign", 10)
	s.makeRequests(other, foreign, "/foreign", 1)
	b := s.signedIn("Acme")
	b.get("/dashboard/start").want(t, 200, "Waiting for the first request", `hx-trigger="every 2s"`)
	if p := b.get("/dashboard/start?part=first"); p.status != 204 {
		t.Errorf("nothing came: got status %d, want 204", p.status)
	}
	_, first := s.customer(s.acc, "First <b>", 10)
	_, second := s.customer(s.acc, "Second", 10)

	ctx := chrome(t)
	if err := chromedp.Do(ctx, s.signIn("Acme"), chromedp.WaitVisible(chromedp.CSS(".tiles")),
		chromedp.Navigate(s.url+"/dashboard/start"), chromedp.WaitVisible(chromedp.CSS(".waiting:not(.good)"))); err != nil {
		t.Fatal(err)
	}
	s.makeRequests(s.acc, first, "/", 1)
	s.makeRequests(s.acc, second, "/", 2)
	if err := chromedp.Do(ctx, until(`document.querySelector(".waiting.good") !== null`)); err != nil {
		t.Fatal(err)
	}
	p := b.get("/dashboard/start?part=first")
	p.wantFragment(t, "The first request came", "First &lt;b&gt; user", "First &lt;b&gt; key")
	p.without(t, "hx-get", "Second", "Foreign")
}

// For an older account the quick start shows the day of the first request.
func TestStartOfOldAccount(t *testing.T) {
	s := newSite(t)
	s.filled()
	since := s.svc.Today() - 364
	s.signedIn("Acme").get("/dashboard/start").want(t, 200, "Requests have been counted since "+since.Start().Format("2 Jan 2006")).without(t, "hx-get")
}
