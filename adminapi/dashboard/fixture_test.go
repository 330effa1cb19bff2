package dashboard_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/limitkeeper/limitkeeper/adminapi"
	"github.com/limitkeeper/limitkeeper/adminapi/dashboard"
	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/service"
	"github.com/limitkeeper/limitkeeper/storage/memstore"
	"github.com/limitkeeper/limitkeeper/webhook"
)

// site is a dashboard beside a REST API, over a store in memory and served over TLS.
type site struct {
	testing.TB
	svc   *service.Service
	store *memstore.Store
	url   string // without a slash at the end
	cert  *x509.Certificate
	acc   *core.Account
	now   func() time.Time
	log   lines // of the dashboard

	single string // the account of people whom the server has authenticated
}

// lines is the text of a log.
type lines struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

// with returns the lines that hold a text.
func (l *lines) with(text string) (found []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for line := range strings.Lines(l.text.String()) {
		if strings.Contains(line, text) {
			found = append(found, line)
		}
	}
	return found
}

// newSite starts a dashboard with an empty account.
func newSite(t testing.TB) *site {
	t.Helper()
	return newSiteAt(t, time.Now)
}

func newSiteAt(t testing.TB, now func() time.Time) *site {
	t.Helper()
	store := memstore.New()
	svc := service.New(store, service.Config{Clock: now})
	s := &site{TB: t, svc: svc, store: store, now: now}
	service := func() *service.Service { return svc }
	secure := func(r *http.Request) bool { return r.TLS != nil }
	clientIP := func(r *http.Request) string { return strings.Split(r.RemoteAddr, ":")[0] }
	pages := dashboard.New(dashboard.Config{Service: service, Secure: secure, ClientIP: clientIP, Email: func(r *http.Request) string { return r.Header.Get("X-Test-Email") },
		Account: s.single, TestWebhook: webhookTester(svc, store), Logger: slog.New(slog.NewTextHandler(&s.log, nil))})
	api := adminapi.New(adminapi.Config{Service: service, Secure: secure, ClientIP: clientIP, OnDecision: func(time.Duration) {},
		OnFault: func(error) {}, Logger: slog.New(slog.DiscardHandler)})
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/functions/v1/") {
			api.ServeHTTP(w, r)
			return
		}
		pages.ServeHTTP(w, r)
	}))
	srv.EnableHTTP2 = true
	srv.StartTLS()
	srv.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelInfo)
	t.Cleanup(srv.Close)
	s.url, s.cert = srv.URL, srv.Certificate()
	s.acc = s.account("Acme")
	return s
}

// account makes another account.
func (s *site) account(name string) *core.Account {
	s.Helper()
	a, _, _, err := s.svc.CreateAccount(context.Background(), name)
	if err != nil {
		s.Fatal(err)
	}
	return a
}

// browser is a browser without scripts.
type browser struct {
	s      *site
	client *http.Client
}

// browser returns a browser that is not signed in. It follows redirects.
func (s *site) browser() *browser {
	jar, _ := cookiejar.New(nil)
	return &browser{s, &http.Client{Jar: jar, Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}}
}

// signedIn returns a browser that is signed in to an account.
func (s *site) signedIn(name string) *browser {
	s.Helper()
	b := s.browser()
	if p := b.post("/dashboard/sign-in", url.Values{"link": {s.link(name)}, "next": {"/dashboard/plans"}}); p.status != http.StatusOK {
		s.Fatalf("sign in: got status %d, want 200\n%s", p.status, p.body)
	}
	return b
}

// link returns the secret of a link to sign in.
func (s *site) link(name string) string {
	s.Helper()
	_, secret, _, err := s.svc.SignIn.NewLink(context.Background(), name)
	if err != nil {
		s.Fatal(err)
	}
	return secret
}

// answer is a page as it came.
type answer struct {
	status int
	path   string // after redirects, with the query
	header http.Header
	body   string
}

func (b *browser) do(method, path string, form url.Values, header http.Header) answer {
	b.s.Helper()
	var body io.Reader
	if form != nil {
		body = strings.NewReader(form.Encode())
	}
	r, err := http.NewRequest(method, b.s.url+path, body)
	if err != nil {
		b.s.Fatal(err)
	}
	for name, values := range header {
		r.Header[name] = values
	}
	if form != nil {
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	return b.run(r)
}

func (b *browser) run(r *http.Request) answer {
	b.s.Helper()
	resp, err := b.client.Do(r)
	if err != nil {
		b.s.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		b.s.Fatal(err)
	}
	return answer{resp.StatusCode, resp.Request.URL.RequestURI(), resp.Header, string(text)}
}

func (b *browser) get(path string) answer { b.s.Helper(); return b.do("GET", path, nil, nil) }
func (b *browser) post(path string, form url.Values) answer {
	b.s.Helper()
	return b.do("POST", path, form, nil)
}

var tokenPattern = regexp.MustCompile(`name="form" value="([^"]+)"`)

var seenPattern = regexp.MustCompile(`name="seen" value="([^"]+)"`)

// token returns the token of the forms on a page.
func (b *browser) token(page string) string {
	b.s.Helper()
	p := b.get(page)
	m := tokenPattern.FindAllStringSubmatch(p.body, -1)
	if m == nil {
		b.s.Fatalf("%s: no form on the page, status %d\n%s", page, p.status, p.body)
	}
	return m[len(m)-1][1]
}

// send fills in a form that is on a page, and sends it.
func (b *browser) send(page, action string, form url.Values) answer {
	b.s.Helper()
	if form == nil {
		form = url.Values{}
	}
	form.Set("form", b.token(page))
	if m := seenPattern.FindStringSubmatch(b.get(page).body); m != nil && form.Get("seen") == "" {
		form.Set("seen", m[1])
	}
	return b.post("/dashboard/"+action, form)
}

// want fails unless a page has the status and holds the texts.
func (a answer) want(t testing.TB, status int, texts ...string) answer {
	t.Helper()
	if a.status != status {
		t.Errorf("%s: got status %d, want %d\n%s", a.path, a.status, status, a.body)
	}
	for _, text := range texts {
		if !strings.Contains(a.body, text) {
			t.Errorf("%s: want %q on the page, got\n%s", a.path, text, a.body)
		}
	}
	return a
}

// filled gives the account of the site plans, users, keys and ninety days of traffic.
func (s *site) filled() {
	s.Helper()
	ctx := context.Background()
	must := func(err error) {
		s.Helper()
		if err != nil {
			s.Fatal(err)
		}
	}
	var plans []*core.Plan
	for _, p := range []struct {
		name, period string
		limit        int64
	}{{"Free", "day", 40}, {"Team", "month", 2_500}, {"Business", "month", 250_000}} {
		pl, err := s.svc.CreatePlan(ctx, s.acc.ID, core.PlanPatch{Name: &p.name, Period: &p.period, Limit: core.Some(p.limit),
			Features: core.Some([]string{"email support"})})
		must(err)
		plans = append(plans, pl)
	}
	for i := range 60 {
		u, err := s.svc.CreateUser(ctx, s.acc.ID, core.UserPatch{Name: new(fmt.Sprintf("Customer %02d", i+1)),
			Email:      core.Some(fmt.Sprintf("customer%02d@example.com", i+1)),
			ExternalID: core.Some(fmt.Sprintf("cus_30%02d", i+1)), PlanID: core.Some(plans[i%3].ID)})
		must(err)
		for n := range 1 + i%2 {
			k, secret, err := s.svc.CreateKey(ctx, s.acc.ID, core.KeyPatch{Name: new([]string{"production", "staging"}[n]), UserID: &u.ID})
			must(err)
			for range (i * 7) % 45 {
				_, err := s.svc.Validate(ctx, s.acc.ID, service.Request{Secret: secret, Endpoint: "/v1/orders", Method: "GET", IP: "192.0.2.7", Cost: 1})
				must(err)
			}
			s.history(core.CounterID{Account: s.acc.ID, KeyID: k.ID}, i)
		}
		s.history(core.CounterID{Account: s.acc.ID, UserID: u.ID}, i)
	}
}

// history gives a key or user the traffic of the year before today.
func (s *site) history(id core.CounterID, seed int) {
	s.Helper()
	ctx := context.Background()
	kept, err := s.store.CounterDays(ctx, id)
	if err != nil {
		s.Fatal(err)
	}
	var days []core.CounterDay
	today := core.DateOf(s.now())
	for ago := core.Date(364); ago > 0; ago-- {
		n := int64(20 + (int(ago)*7+seed*13)%30 - int(ago)/20)
		if weekday := (today - ago + 3) % 7; weekday >= 5 {
			n /= 3
		}
		d := core.CounterDay{Date: today - ago, Traffic: core.Traffic{Allowed: n}}
		if (int(ago)+seed)%9 == 0 {
			d.Denied = n / 4
		}
		days = append(days, d)
	}
	if err := s.store.SetDays(ctx, id, append(days, kept...)); err != nil {
		s.Fatal(err)
	}
}

// discard is a log without output.
var discard = slog.New(slog.DiscardHandler)

// webhookTester returns a deliverer's Test, which may connect to loopback addresses.
func webhookTester(svc *service.Service, store core.Store) func(context.Context, string, string) (*core.Attempt, error) {
	sender := webhook.NewSender("Limitkeeper/test", 0)
	sender.SetAllowPrivate(true)
	return webhook.New(webhook.Options{Service: svc, Store: store, Sender: sender}).Test
}
