package e2e

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"github.com/limitkeeper/limitkeeper/internal/freeport"
)

// person is someone in front of a real browser, at the dashboard of a running binary.
type person struct {
	t            *testing.T
	browser      context.Context
	gateway, api string // addresses
	http         *http.Client
}

// chromium returns the path of the browser.
func chromium(t *testing.T) string {
	t.Helper()
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	t.Fatal("no chromium is installed: `make deps` installs it")
	return ""
}

// protected starts the binary in front of an upstream, and returns a person with the link
// that it prints.
func protected(t *testing.T) (p *person, link string) {
	t.Helper()
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "hello") }))
	t.Cleanup(upstream.Close)
	gateway, api := "localhost:"+freeport.Take(t), "localhost:"+freeport.Take(t)
	dir := t.TempDir()
	proc, err := launch(binary, dir, "protect", append(os.Environ(), "HOME="+dir), "protect", "--to", strings.TrimPrefix(upstream.URL, "http://"),
		"--from", gateway, "--api", api, "--admin", "localhost:"+freeport.Take(t), "--data", dir+"/data")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(proc.kill)
	if err := proc.await("Ctrl-C"); err != nil {
		t.Fatal(err)
	}
	link = regexp.MustCompile(`https://\S+/dashboard/sign-in\?link=\S+`).FindString(proc.output())
	if link == "" {
		t.Fatalf("no link to the dashboard:\n%s", proc.output())
	}
	p = &person{t: t, gateway: "https://" + gateway, api: "https://" + api,
		http: &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}}
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(chromium(t)), chromedp.NoSandbox,
		chromedp.Flag("ignore-certificate-errors", true), chromedp.Flag("disable-dev-shm-usage", true))
	ctx, cancel := chromedp.NewExecAllocator(context.Background(), options...)
	t.Cleanup(cancel)
	p.browser, cancel = chromedp.NewContext(ctx)
	t.Cleanup(cancel)
	p.do("starting the browser", chromedp.Navigate("about:blank"))
	p.browser, cancel = context.WithTimeout(p.browser, 2*time.Minute)
	t.Cleanup(cancel)
	return p, link
}

// do does something in the browser, or fails and tells what the page shows.
func (p *person) do(what string, steps ...chromedp.Action[chromedp.Void]) {
	p.t.Helper()
	if err := chromedp.Do(p.browser, steps...); err != nil {
		text, _ := chromedp.Run(p.browser, chromedp.Evaluate[string](`location.pathname + "\n" + document.body.innerText`))
		p.t.Fatalf("%s: %v\n%s", what, err, text)
	}
}

// open opens a page of the dashboard.
func (p *person) open(page string) {
	p.t.Helper()
	p.do("opening "+page, chromedp.Navigate(p.api+"/dashboard/"+page), chromedp.WaitVisible(chromedp.CSS("#main")))
}

// fill types into the fields of the form of a page, and sends the form. values are names of fields, each followed by its
// value. The value of a radio button or of a select is the option.
func (p *person) fill(page string, values ...string) {
	p.t.Helper()
	p.open(page)
	for i := 0; i < len(values); i += 2 {
		name, value := values[i], values[i+1]
		field := fmt.Sprintf(`#main [name=%q]`, name)
		kind, err := chromedp.Run(p.browser, chromedp.Evaluate[string](fmt.Sprintf(`document.querySelector(%q).type`, field)))
		if err != nil {
			p.t.Fatalf("%s: the field %s: %v", page, name, err)
		}
		switch kind {
		case "radio":
			p.do(page, chromedp.Click(chromedp.CSS(fmt.Sprintf(`%s[value=%q]`, field, value))))
		case "select-one":
			p.set(field, value)
		default:
			p.set(field, "")
			p.do(page, chromedp.SendKeys(chromedp.CSS(field), value))
		}
	}
	p.press("#main .form button[type=submit]")
}

// set gives a field a value.
func (p *person) set(field, value string) {
	p.t.Helper()
	got, err := chromedp.Run(p.browser, chromedp.Evaluate[string](fmt.Sprintf(`document.querySelector(%q).value = %q`, field, value)))
	if err != nil || got != value {
		p.t.Fatalf("the field %s: got %q, %v, want %q", field, got, err, value)
	}
}

// press presses a button, and waits for the page that comes.
func (p *person) press(button string) {
	p.t.Helper()
	p.do("marking the page", chromedp.Func(func(ctx context.Context, t *chromedp.Target) error {
		_, err := chromedp.Evaluate[bool](`window.before = true`)(ctx, t)
		return err
	}))
	p.do("pressing "+button, chromedp.Click(chromedp.CSS(button)))
	p.until("the next page after "+button, `!window.before && document.readyState == "complete"`)
}

// until waits until an expression is true on the page.
func (p *person) until(what, expression string) {
	p.t.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) {
		ok, err := chromedp.Run(p.browser, chromedp.Evaluate[bool](`Boolean(`+expression+`)`))
		if err == nil && ok { // a page that is just leaving cannot be asked
			return
		}
		if time.Now().After(deadline) {
			p.do(what+" did not come", func(context.Context, *chromedp.Target) (v chromedp.Void, _ error) {
				return v, fmt.Errorf("want %s: %v", expression, err)
			})
		}
	}
}

// sees waits until the page has a text.
func (p *person) sees(texts ...string) {
	p.t.Helper()
	for _, text := range texts {
		p.until(fmt.Sprintf("%q", text), fmt.Sprintf(`document.body.innerText.includes(%q)`, text))
	}
}

// secret returns the secret that the page shows.
func (p *person) secret() string {
	p.t.Helper()
	p.until("a secret", `document.querySelector("#secret")`)
	secret, err := chromedp.Run(p.browser, chromedp.Evaluate[string](`document.querySelector("#secret").textContent`))
	if err != nil || !strings.HasPrefix(secret, "lk_") {
		p.t.Fatalf("the secret: got %q, %v", secret, err)
	}
	return secret
}

// path returns the path of the page, below the dashboard.
func (p *person) path() string {
	p.t.Helper()
	path, err := chromedp.Run(p.browser, chromedp.Evaluate[string](`location.pathname`))
	if err != nil {
		p.t.Fatal(err)
	}
	return strings.TrimPrefix(path, "/dashboard/")
}

// status sends a request outside the browser, and returns its status.
func (p *person) status(url, header, value string) int {
	p.t.Helper()
	r, err := http.NewRequest("GET", url, nil)
	if err != nil {
		p.t.Fatal(err)
	}
	r.Header.Set(header, value)
	resp, err := p.http.Do(r)
	if err != nil {
		p.t.Fatal(err)
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, resp.Body)
	return resp.StatusCode
}

// opens reports whether an owner's key opens the REST API.
func (p *person) opens(ownerKey string) bool {
	p.t.Helper()
	return p.status(p.api+"/functions/v1/plans", "Authorization", "Bearer "+ownerKey) == 200
}

const dashboardPassword = "correct horse battery staple"

// A whole day at the dashboard, in a real browser: from the link that the first start prints
// to the request that is refused.
func TestDashboard(t *testing.T) {
	p, link := protected(t)

	// Signing in by the link, once.
	p.do("opening the link", chromedp.Navigate(link), chromedp.WaitVisible(chromedp.CSS("#main button")))
	p.press("#main button[type=submit]")
	p.sees("Quick start", "Waiting for the first request")
	p.do("opening the link again", chromedp.Navigate(link), chromedp.WaitVisible(chromedp.CSS("#main button")))
	p.press("#main .form button[type=submit]")
	p.sees("used already")

	// A password, and signing in by it.
	p.fill("settings", "password", dashboardPassword)
	p.sees("The password is set")
	p.press(".signout button")
	p.sees("Sign in")
	p.fill("sign-in", "name", "default", "password", "not the password at all")
	p.sees("The name, the email or the password is wrong")
	p.fill("sign-in", "name", "default", "password", dashboardPassword)
	p.sees("Sign out")

	// An owner's key opens the REST API; regenerated, the old one does as was chosen.
	p.fill("owner-keys/new", "name", "first")
	old := p.secret()
	if !p.opens(old) {
		t.Errorf("the new owner's key does not open the REST API")
	}
	for _, tc := range []struct {
		grace, says string
		works       bool
	}{{"keep", "keeps working until you revoke it", true}, {"3600", "works until", true}, {"0", "has stopped working", false}} {
		p.fill("owner-keys/new", "name", "key "+tc.grace)
		old := p.secret()
		p.open("owner-keys")
		row := fmt.Sprintf(`[...document.querySelectorAll("tr")].find(r => r.innerText.includes("key %s")).querySelector('a[href$="/regenerate"]')`, tc.grace)
		href, err := chromedp.Run(p.browser, chromedp.Evaluate[string](row+`.getAttribute("href")`))
		if err != nil {
			t.Fatal(err)
		}
		p.fill(strings.TrimPrefix(href, "/dashboard/"), "grace", tc.grace)
		p.sees(tc.says)
		next := p.secret()
		if p.opens(old) != tc.works || !p.opens(next) {
			t.Errorf("grace %s: the old key works: %t, want %t; the new one: %t", tc.grace, p.opens(old), tc.works, p.opens(next))
		}
	}

	// A plan, a user, a key, and requests through the gateway until one is refused.
	p.fill("plans/new", "name", "Basic", "max_requests", "3", "request_period", "day")
	p.sees("Created.", "3 a day")
	plan := strings.TrimPrefix(p.path(), "plans/")
	p.fill("users/new", "name", "First customer", "email", "first@example.com", "plan_id", plan)
	p.sees("First customer")
	user := strings.TrimPrefix(p.path(), "users/")
	p.fill("keys/new?user="+user, "name", "production")
	key := p.secret()
	p.press("#main .actions a")
	page := p.path()
	p.sees("production", "No requests")
	for i, want := range []int{200, 200, 200, 429} {
		if got := p.status(p.gateway+fmt.Sprintf("/orders/%d", i+1), "X-API-Key", key); got != want {
			t.Errorf("request %d: got %d, want %d", i+1, got, want)
		}
	}

	// The history updates itself; the chart and the usage need a reload.
	p.sees("/orders/3", "/orders/4", "denied")
	p.open(page)
	p.sees("3 of 3")
	for _, selector := range []string{".chart rect.allowed", ".chart rect.denied"} {
		p.until("the bar "+selector, fmt.Sprintf(`document.querySelector(%q)`, selector))
	}
	p.open("users/" + user)
	p.sees("3 of 3", "/orders/4")
	p.open("plans/" + plan)
	p.sees("3 allowed", "1 denied")
	p.open("")
	p.sees("3 allowed", "1 denied", "First customer", "3 of 3")
	p.open("start")
	p.sees("The first request came")

	// Regenerated, the key's old value works as was chosen; disabled, it does not.
	p.fill(page+"/regenerate", "grace", "0")
	next := p.secret()
	for secret, want := range map[string]int{key: 401, next: 429} {
		if got := p.status(p.gateway+"/", "X-API-Key", secret); got != want {
			t.Errorf("after regenerating: got %d, want %d", got, want)
		}
	}
	p.open(page)
	p.press(`#main form[action$="/disabled"] button`)
	if got := p.status(p.gateway+"/", "X-API-Key", next); got != 403 {
		t.Errorf("a disabled key: got %d, want 403", got)
	}

	// Signing out everywhere ends this session.
	p.open("settings")
	p.press(`form[action$="/sign-out-everywhere"] button`)
	p.open("plans")
	p.sees("Sign in")
	if p.path() != "sign-in" {
		t.Errorf("after signing out everywhere: got to %s", p.path())
	}
}
