package dashboard_test

import (
	"html"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"testing"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/service"
)

var whsec = regexp.MustCompile(`whsec_[A-Za-z0-9+/=]+`)

// A webhook is created, tested, changed, given a new secret and deleted. Its secret is shown once, and verifies the test.
func TestWebhooks(t *testing.T) {
	s := newSite(t)
	s.svc.Tune(service.Tunables{WebhookAllowPrivate: true})
	b := s.signedIn("Acme")
	status, bodies, headers := http.StatusOK, make(chan []byte, 10), make(chan http.Header, 10)
	receiver := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		bodies <- body
		headers <- r.Header
		w.WriteHeader(status)
	}))
	defer receiver.Close()
	b.get("/dashboard/webhooks").want(t, 200, "No webhooks yet")
	for _, bad := range []url.Values{{"url": {"ftp://example.com"}}, {"url": {receiver.URL}, "events": {"limitkeeper.treshold"}}} {
		b.send("/dashboard/webhooks/new", "webhooks", bad).want(t, 422, `aria-invalid="true"`)
	}
	made := b.send("/dashboard/webhooks/new", "webhooks", url.Values{"url": {receiver.URL}, "events": {"limitkeeper.forecast\nlimitkeeper.threshold"}, "description": {"<Sales>"}, "is_active": {"true"}})
	made.want(t, 200, "Your new webhook", "shown this once.")
	secret := whsec.FindString(html.UnescapeString(made.body))
	hooks, _, err := s.svc.Webhooks(t.Context(), s.acc.ID, core.Page{Number: 1, Size: 10})
	if err != nil || len(hooks) != 1 || string(hooks[0].Secrets[0].Value) != secret {
		t.Fatalf("got %v, %v, and the secret %q", hooks, err, secret)
	}
	path := "/dashboard/webhooks/" + hooks[0].ID
	page := b.get(path)
	page.want(t, 200, "&lt;Sales&gt;", "threshold", "forecast", "None yet")
	if whsec.MatchString(html.UnescapeString(page.body)) {
		t.Error("the page shows the secret")
	}
	b.send(path, strings.TrimPrefix(path, "/dashboard/")+"/test", nil).want(t, 200, "has accepted the test", "limitkeeper.test", "delivered")
	wh, err := standardwebhooks.NewWebhook(secret)
	if err != nil {
		t.Fatal(err)
	}
	if err := wh.Verify(<-bodies, <-headers); err != nil {
		t.Error(err)
	}
	status = http.StatusTeapot
	b.send(path, strings.TrimPrefix(path, "/dashboard/")+"/test", nil).want(t, 200, "The test has failed", "The receiver has answered 418")
	b.send(path+"/rotate", strings.TrimPrefix(path, "/dashboard/")+"/rotate", nil).want(t, 200, "whsec_", "For 24 hours, the old secret signs each delivery, too.")
	b.get(path).want(t, 200, "The old secret signs until")
	b.send(path+"/edit", strings.TrimPrefix(path, "/dashboard/"), url.Values{"url": {receiver.URL}, "events": {""}, "is_active": {"false"}, "seen": {seenPattern.FindStringSubmatch(b.get(path + "/edit").body)[1]}}).
		want(t, 200, "Saved.", "disabled", "all")
	b.get("/dashboard/webhooks").want(t, 200, hooks[0].ID, "disabled", "all")
	b.send(path+"/delete", strings.TrimPrefix(path, "/dashboard/")+"/delete", nil).want(t, 200, "Deleted.", "No webhooks yet")
	b.get(path).want(t, 404)
}
