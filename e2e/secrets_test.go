package e2e

import (
	"bytes"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
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
