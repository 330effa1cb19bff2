package e2e

import (
	"bytes"
	"encoding/json"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/limitkeeper/limitkeeper/storage/redisstore/redistest"
)

// No secret that was ever used is in the data directory, in a log, in what the server
// printed, or in the metrics: only digests are kept.
func TestSecretsAreNowhere(t *testing.T) {
	t.Run("badger", func(t *testing.T) {
		secretsAreNowhere(t, newSite(t, "reverse_proxy 127.0.0.1:1"), func() string { return "" })
	})
	t.Run("redis", func(t *testing.T) {
		server := redistest.Start(t, "--appendonly", "yes")
		s := newSiteOn(t, "redis "+server.Addr(), "", "reverse_proxy 127.0.0.1:1")
		secretsAreNowhere(t, s, func() string {
			server.Do(t, "SAVE")
			return server.Dir()
		})
	})
}

// signInWithSecrets signs in to the dashboard, sets a password, and adds the session and the password to secrets.
func (s *site) signInWithSecrets(secrets map[string]string) {
	s.t.Helper()
	send := func(method, target string, form url.Values, cookie string) *http.Response {
		s.t.Helper()
		r, err := http.NewRequest(method, target, strings.NewReader(form.Encode()))
		if err != nil {
			s.t.Fatal(err)
		}
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		r.Header.Set("X-Forwarded-Proto", "https")
		r.Header.Set("Cookie", cookie)
		resp, err := client.Transport.RoundTrip(r)
		if err != nil {
			s.t.Fatal(err)
		}
		s.t.Cleanup(func() { _ = resp.Body.Close() })
		return resp
	}
	var made struct{ Link string }
	if err := json.NewDecoder(send("POST", "http://localhost:"+s.admin+"/limitkeeper/sign-in?account=default", nil, "").Body).Decode(&made); err != nil {
		s.t.Fatal(err)
	}
	_, link, _ := strings.Cut(made.Link, "link=")
	send("GET", s.url+made.Link, nil, "")
	cookie, _, _ := strings.Cut(send("POST", s.url+"/dashboard/sign-in", url.Values{"link": {link}}, "").Header.Get("Set-Cookie"), ";")
	_, session, _ := strings.Cut(cookie, "=")
	send("GET", s.url+"/dashboard/settings?x="+session, nil, cookie)
	page, err := io.ReadAll(send("GET", s.url+"/dashboard/settings", nil, cookie).Body)
	if err != nil {
		s.t.Fatal(err)
	}
	token := regexp.MustCompile(`name="form" value="([^"]+)"`).FindSubmatch(page)
	if token == nil {
		s.t.Fatalf("no form in the settings:\n%s", page)
	}
	const password = "correct horse battery staple"
	if resp := send("POST", s.url+"/dashboard/settings/password", url.Values{"form": {string(token[1])}, "password": {password}}, cookie); resp.StatusCode != 303 {
		s.t.Fatalf("setting a password: got %d", resp.StatusCode)
	}
	secrets["link"], secrets["session"], secrets["password"] = link, session, password
}

// secretsAreNowhere uses secrets in every way and looks for them below the directory of
// the site, and of the server that kept returns.
func secretsAreNowhere(t *testing.T, s *site, kept func() string) {
	p := s.start()
	id, first := s.newKey(1000)
	var again struct {
		APIKey string `json:"api_key"`
	}
	s.must("POST", "/functions/v1/keys/"+id+"/regenerate", map[string]any{"grace_seconds": 3600}, &again)
	second := again.APIKey
	secrets := map[string]string{"owner's key": s.owner, "first value": first, "second value": second, "random part of it": second[len("lk_user_"):]}
	escaped := strings.ReplaceAll(second, "_", "%5F")

	for _, r := range []struct {
		path   string
		header map[string]string
	}{
		{"/a", map[string]string{"X-API-Key": first}},
		{"/a", map[string]string{"Authorization": "Bearer " + second}},
		{"/a?api_key=" + second, nil},
		{"/a?b=" + second, map[string]string{"X-API-Key": second, "Referer": "http://x/" + second, "User-Agent": s.owner}},
		{"/a?c=" + escaped, nil},
		{"/a/" + escaped, map[string]string{"X-API-Key": first, "Referer": "http://x/?k=" + escaped}},
		{"/a/" + second, map[string]string{"Cookie": "session=" + second}},
		{"/a", map[string]string{"X-API-Key": s.owner}},
	} {
		if _, _, err := s.send(http.MethodGet, r.path, nil, r.header); err != nil {
			t.Fatal(err)
		}
	}
	s.must("GET", "/functions/v1/keys/"+id+"/requests", nil, new(any))
	_, _, _ = s.call(http.MethodPost, "/functions/v1/validate", map[string]any{"api_key": second, "endpoint": "/x?k=" + second, "method": "GET"})
	_, _, _ = s.call(http.MethodPost, "/functions/v1/validate", map[string]any{"api_key": second, "endpoint": "/x?k=" + escaped, "method": "GET"})
	_, _, _ = s.call(http.MethodPost, "/functions/v1/validate", map[string]any{"api_key": s.owner, "endpoint": "/x", "method": second})
	_, _, _ = s.call(http.MethodGet, "/functions/v1/keys/"+second, nil)

	s.signInWithSecrets(secrets)

	resp, err := client.Get("http://localhost:" + s.admin + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var metrics bytes.Buffer
	if _, err := metrics.ReadFrom(resp.Body); err != nil {
		t.Fatal(err)
	}
	for what, secret := range secrets {
		if strings.Contains(metrics.String(), secret) {
			t.Errorf("the %s is in the metrics", what)
		}
	}
	if !strings.Contains(metrics.String(), "limitkeeper_decisions_total") {
		t.Errorf("the metrics lack the decisions, so they were not looked at")
	}
	if code, err := p.end(syscall.SIGTERM); code != 0 || err != nil {
		t.Fatalf("ended with %d (%v)", code, err)
	}

	files := 0
	look := func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		files++
		for what, secret := range secrets {
			if i := bytes.Index(b, []byte(secret)); i >= 0 {
				t.Errorf("the %s is in %s: …%q", what, strings.TrimPrefix(path, s.dir), b[max(0, i-200):i+len(secret)])
			}
		}
		return nil
	}
	for _, dir := range []string{s.dir, kept()} {
		if dir == "" {
			continue
		}
		if err := filepath.WalkDir(dir, look); err != nil {
			t.Fatal(err)
		}
	}
	if log, err := os.ReadFile(s.accessLog); err != nil || bytes.Count(log, []byte("handled request")) < 10 {
		t.Errorf("the access log has too few entries (%v):\n%s", err, log)
	}
	if files < 5 {
		t.Errorf("looked into %d files only", files)
	}
}
