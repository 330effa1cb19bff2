package caddymodule

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"github.com/google/go-cmp/cmp"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/limitkeeper/limitkeeper/caddymodule/caddytest"
	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/internal/freeport"
)

// No log contains a secret: used, refused, kept, encoded, in the wrong place, or in an error. The test reads
// the real log with all log options of Caddy on.
func TestLogsHoldNoSecret(t *testing.T) {
	s := newServer(t)
	s.Start("store memory", `limitkeeper {
		key header X-Strange
		key query api_key
		key cookie session
		key bearer
	}
	log_append uri {http.request.uri}
	log_append orig {http.request.orig_uri}
	log_append orig_query {http.request.orig_uri.query}
	handle /kept {
		limitkeeper {
			key header X-API-Key
			key query other_key
			keep_key
		}
		respond "{http.request.uri}"
	}
	handle /gone {
		reverse_proxy 127.0.0.1:1
	}
	respond ok`)
	ten := s.Tenant("default", 1000)
	key, encoded := ten.Secret, strings.ReplaceAll(url.QueryEscape(ten.Secret), "_", "%5F")
	const password = "my-own-password" // no key form, but in the place of a key
	requests := [][]string{
		{"/", "X-Strange: " + key},
		{"/a?api_key=" + key + "&b=c"},
		{"/a?b=" + key + "&api%5Fkey=" + encoded},
		{"/", "Cookie: session=" + key + "; a=b"},
		{"/", "Authorization: Bearer " + key},
		{"/", "X-Strange: " + password},
		{"/?api_key=" + password},
		{"/" + key + "/" + encoded, "X-Strange: " + key, "Referer: http://x/?k=" + key},
		{"/gone", "X-Strange: " + key},
		{"/kept?other_key=" + key, "X-Strange: " + key},
		{"/kept", "X-API-Key: " + key, "X-Strange: " + key},
		{"/functions/v1/keys", "Authorization: Bearer " + ten.Owner, "X-Strange: " + ten.Owner},
	}
	for _, r := range requests {
		s.Get(r[0], r[1:]...)
	}
	s.WaitLog(`"logger":"http.log.access`, len(requests))
	log := s.Logged()
	for what, secret := range map[string]string{"key": key, "encoded key": encoded, "owner's key": ten.Owner, "password": password} {
		if i := strings.Index(log, secret); i >= 0 {
			t.Errorf("the %s is in the log: %s", what, log[max(0, i-500):i+len(secret)])
		}
	}
	for _, want := range []string{`"uri":"/a?api_key=REDACTED&b=c"`, `"X-Strange":["REDACTED"]`, `"orig":"/a?b=c"`, `"orig_query":"b=c"`, "connection refused"} {
		if !strings.Contains(log, want) {
			t.Errorf("the log lacks %s, so it was not looked at", want)
		}
	}
}

// With log_credentials the log still has none of our secrets.
func TestLogsHoldNoSecretWithCredentials(t *testing.T) {
	s := newServer(t)
	text := strings.Replace(s.Config("store memory", "limitkeeper {\nkey cookie session\nkey bearer\n}\nrespond ok"),
		"servers {", "servers {\nlog_credentials", 1)
	s.Must(s.Load(text))
	ten := s.Tenant("default", 3)
	s.Get("/", "Cookie: session="+ten.Secret+"; theme=dark")
	s.Get("/", "Authorization: Bearer "+ten.Secret)
	s.Get("/", "Authorization: Basic b3BlbjpzZXNhbWU=")
	const imported = "8f14e45f-ceea-467f" // a key of another system has no prefix
	s.Get("/", "Cookie: session="+imported+"; theme=dark")
	s.Get("/", `Cookie: theme=dark; session="`+imported+`"`)
	s.Get("/", "Authorization: bearer  "+imported)
	s.WaitLog(`"logger":"http.log.access`, 6)
	log := s.Logged()
	if strings.Contains(log, ten.Secret) || strings.Contains(log, imported) {
		t.Errorf("a key is in the log")
	}
	if !strings.Contains(log, "theme=dark") || !strings.Contains(log, "b3BlbjpzZXNhbWU=") {
		t.Errorf("the log lacks the credentials that are not ours")
	}
}

// Promise 4: a config is refused if one of its logs could have keys. The running config stays.
func TestRedactOrRefuse(t *testing.T) {
	s := newServer(t)
	s.Start("store memory", "limitkeeper\nrespond ok")
	for _, tt := range []struct {
		name, from, to string
		refused        bool
	}{
		{"the default log has another format", "format limitkeeper", "format json", true},
		{"the default log has no format", "format limitkeeper", "", true},
		{"the access log has no format", "http://localhost", "http://%s {\nlog {\noutput file %dir/access.log\n}\n}\nhttp://localhost", true},
		{"a log of another handler has no format", "servers {", "log proxies {\ninclude http.handlers.reverse_proxy\n}\nservers {", true},
		{"the format has an unknown format", "format limitkeeper", "format limitkeeper yaml", true},
		{"a filter is around the format", "format limitkeeper", "format filter {\nwrap limitkeeper\n}", true},
		{"the format has a filter", "format limitkeeper", "format limitkeeper filter {\nrequest>headers>User-Agent delete\n}", false},
		{"the format has another format", "format limitkeeper", "format limitkeeper console", false},
		{"a log has no entries of http", "servers {", "log tls {\ninclude tls\n}\nservers {", false},
		{"a log is discarded", "servers {", "log discarded {\noutput discard\n}\nservers {", false},
	} {
		for _, site := range []string{"limitkeeper", "limitkeeper_api"} {
			t.Run(site+", "+tt.name, func(t *testing.T) {
				other := "http://localhost:" + freeport.Take(t)
				to := strings.NewReplacer("http://%s", other, "%dir", s.Dir).Replace(tt.to)
				if !tt.refused {
					s.Must(s.Load(strings.Replace(s.Config("store memory", "handle /a {\nlimitkeeper\n}\nhandle {\n"+site+"\n}"), tt.from, to, 1)))
					return
				}
				err := s.Load(strings.Replace(s.rejected("store memory", site), tt.from, to, 1))
				want := "API keys would appear in the logs"
				if strings.HasSuffix(to, "yaml") {
					want = "module not registered: caddy.logging.encoders.yaml"
				}
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("got %v, want an error about the logs", err)
				}
				if got := s.Get("/"); got.StatusCode != http.StatusUnauthorized {
					t.Errorf("the running config answers %d, want 401", got.StatusCode)
				}
			})
		}
	}
}

// A config without an access log needs no format: the failure of a handler is answered and logged without the request's key.
func TestLogsOfShortConfig(t *testing.T) {
	s := newServer(t)
	short := strings.NewReplacer("\t\tlog\n", "", "format limitkeeper", "", "level DEBUG", "")
	config := func(site string) string {
		return short.Replace(s.Config("store memory", site))
	}
	site := "limitkeeper {\nkey header X-Strange\nkey query api_key\n}\nhandle /gone {\nreverse_proxy 127.0.0.1:1\n}\nhandle /missing {\nerror 404\n}\nlimitkeeper_api\nrespond ok"
	s.Port = freeport.Take(t)
	s.Must(s.Load(config(site)))
	ten := s.Tenant("default", 1000)
	for path, want := range map[string]int{"/gone": 502, "/gone?api_key=" + ten.Secret: 502, "/missing": 404, "/": 200, "/" + ten.Secret: 200} {
		if got := s.Get(path, "X-Strange: "+ten.Secret).StatusCode; got != want {
			t.Errorf("%.10s: got %d, want %d", path, got, want)
		}
	}
	s.WaitLog("a handler has failed", 2)
	log := s.Logged()
	if strings.Contains(log, ten.Secret) || strings.Contains(log, "http.log.error") {
		t.Errorf("the log has the key or the request: %s", log)
	}
	if !strings.Contains(log, "connection refused") || !strings.Contains(log, `"status":502`) {
		t.Errorf("the log does not say what has failed: %s", log)
	}
	for name, other := range map[string]string{
		"an access log":                       strings.Replace(config(site), "limitkeeper {\nkey", "log\nlimitkeeper {\nkey", 1),
		"error routes":                        config(site + "\nhandle_errors {\nrespond sorry\n}"),
		"keep_key":                            config(strings.Replace(site, "limitkeeper {\n", "limitkeeper {\nkeep_key\n", 1)),
		"errors":                              config(strings.Replace(site, "limitkeeper {\n", "limitkeeper {\nerrors\n", 1)),
		"a handler in front of the gateway":   config("route {\nforward_auth 127.0.0.1:1 {\nuri /auth\n}\nlimitkeeper\nrespond ok\n}"),
		"a handler on a path without gateway": config("handle /open {\nreverse_proxy 127.0.0.1:1\n}\nhandle {\nlimitkeeper\nrespond ok\n}"),
		"a handler of another site":           config("limitkeeper\nrespond ok") + "\nhttp://other.localhost:" + s.Port + " {\nreverse_proxy 127.0.0.1:1\n}",
		"level DEBUG":                         strings.Replace(config(site), "log {", "log {\nlevel DEBUG", 1),
	} {
		if err := s.Load(other); err == nil || !strings.Contains(err.Error(), "API keys would appear in the logs") {
			t.Errorf("%s: got %v, want an error about the logs", name, err)
		}
	}
}

// manyErrors is an error that zap logs with its causes.
type manyErrors []error

func (m manyErrors) Error() string   { return errors.Join(m...).Error() }
func (m manyErrors) Errors() []error { return m }

// The encoder changes only secrets in log entries, also in fields that a logger adds to each entry.
func TestLogEncoder(t *testing.T) {
	const secret = "lk_user_abcdefgh"
	e := new(LogEncoder)
	if err := e.Provision(caddy.Context{Context: t.Context()}); err != nil {
		t.Fatal(err)
	}
	logSources.add([]KeySource{{In: inHeader, Name: "x-test-key"}, {In: inQuery, Name: "test_key"}})
	var out bytes.Buffer
	log := zap.New(zapcore.NewCore(e, zapcore.AddSync(&out), zapcore.InfoLevel))

	r, _ := http.NewRequest(http.MethodGet, "http://localhost/p?test_key=1&test_key&q=%zz&x="+secret, nil)
	r.RequestURI = r.URL.RequestURI()
	r.Header = http.Header{"X-Test-Key": {"pass"}, "A": {"b", "c " + secret}}
	log = log.With(zap.Object("request", caddyhttp.LoggableHTTPRequest{Request: r}), zap.String("of_all", secret))
	log.Info("saw "+secret, zap.String("s", secret), zap.Int("n", 7), zap.Error(errors.New("bad "+secret)), zap.Strings("list", []string{secret}),
		zap.Any("any", map[string]string{"k": secret}), zap.String("url", "/a?test_key=1"),
		zap.Object("h", caddyhttp.LoggableHTTPHeader{Header: http.Header{"B": {secret}, "X-Test-Key": {"pass"}}}))
	log.Info("the next")
	log.Info("several", zap.Error(manyErrors{errors.New("/a?test_key=pass"), errors.New("other")}))

	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != 3 || strings.Contains(out.String(), secret) || strings.Contains(out.String(), "pass") {
		t.Fatalf("got %s", out.String())
	}
	for i, want := range []map[string]any{
		{"msg": "saw lk_***", "of_all": "lk_***", "s": "lk_***", "n": 7.0, "error": "bad lk_***", "list": []any{"lk_***"}, "any": map[string]any{"k": "lk_***"},
			"url": "/a?test_key=REDACTED", "h": map[string]any{"B": []any{"lk_***"}, "X-Test-Key": []any{redacted}}},
		{"msg": "the next", "of_all": "lk_***"},
	} {
		var got map[string]any
		if err := json.Unmarshal([]byte(lines[i]), &got); err != nil {
			t.Fatal(err)
		}
		request, _ := got["request"].(map[string]any)
		if request["uri"] != "/p?test_key=REDACTED&test_key=REDACTED&q=%zz&x=lk_***" || request["method"] != "GET" {
			t.Errorf("got request %v", request)
		}
		for _, member := range []string{"request", "ts", "level"} {
			delete(got, member)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("entry %d (-want +got):\n%s", i, diff)
		}
	}
	if r.Header.Get("X-Test-Key") != "pass" || !strings.Contains(r.RequestURI, secret) {
		t.Error("the request itself was changed")
	}
}

// The encoder copies a header before it changes it, because the request continues to the upstream. It
// does not copy a header without secrets.
func TestRedactHeader(t *testing.T) {
	var s sourceSet
	s.add([]KeySource{{In: inHeader, Name: "X-API-Key"}, {In: inQuery, Name: "k"}})
	h := http.Header{"X-Api-Key": {"a"}, "Referer": {"/a", "/b?k=1", "/c?j=2&k=3"}, "Accept": {"x", "y"}, "Empty": {}}
	before := h.Clone()
	want := http.Header{"X-Api-Key": {redacted}, "Referer": {"/a", "/b?k=REDACTED", "/c?j=2&k=REDACTED"}, "Accept": {"x", "y"}, "Empty": {}}
	if diff := cmp.Diff(want, s.header(h)); diff != "" {
		t.Errorf("cleaned (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(before, h); diff != "" {
		t.Errorf("the request's own was changed (-want +got):\n%s", diff)
	}
	plain := http.Header{"Accept": {"x", "y"}, "User-Agent": {"curl"}}
	if n := testing.AllocsPerRun(100, func() { s.header(plain) }); n != 0 {
		t.Errorf("a header without secrets is copied with %v allocations", n)
	}
}

// No log has a key that the client sent several times if the upstream closes the connection. reverse_proxy
// then logs its request at level WARN, also in an error route, which gets the original URI.
func TestLogsHoldNoSecretWhenUpstreamBreaks(t *testing.T) {
	s := newServer(t)
	broken := newRecorder(t, func(w http.ResponseWriter, _ *http.Request) {
		conn, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		_, _ = rw.WriteString("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf of it")
		_ = rw.Flush()
		conn.Close()
	})
	s.Start("store memory", `rewrite /rewritten* /p
	limitkeeper {
		key header X-API-Key
		key query api_key
		errors
	}
	handle /fails {
		error 502
	}
	`+broken.proxy()+`
	handle_errors {
		`+broken.proxy()+`
	}`)
	ten, other := s.Tenant("default", 1000), s.Tenant("other", 1000)
	key, encoded := ten.Secret, strings.ReplaceAll(ten.Secret, "_", "%5F")
	requests := [][]string{
		{"/a", "X-API-Key: " + key, "X-API-Key: " + key},
		{"/a?api_key=" + key + "&k=" + key + "&next=/x%3Fk%3D" + encoded, "X-API-Key: " + key},
		{"/a", "X-API-Key: " + key, "Referer: http://x/?k=" + key, "X-Copy: Bearer " + key, "X-Forwarded-Uri: /?k=" + encoded, "Cookie: k=" + key},
		{"/a?api_key=" + other.Secret, "X-API-Key: " + key, "X-API-Key: " + other.Secret},
		{"/fails?k=" + key, "X-API-Key: " + key},
		{"/rewritten?k=" + encoded, "X-API-Key: " + key},
		{"/a?k=lk_user_unknown01", "X-API-Key: lk_user_unknown01"}, // refused
	}
	for _, r := range requests {
		req, _ := http.NewRequest(http.MethodGet, s.URL(r[0]), nil)
		for _, h := range r[1:] {
			name, value, _ := strings.Cut(h, ": ")
			req.Header.Add(name, value)
		}
		if resp, err := caddytest.Client.Do(req); err == nil {
			resp.Body.Close()
		}
		if up := broken.last.Load(); strings.Contains(up.RequestURI, "lk") || strings.Contains(fmt.Sprint(up.Header), "lk") {
			t.Errorf("%.12s: the upstream got %s with %v", r[0], up.RequestURI, up.Header)
		}
	}
	s.WaitLog("aborting with incomplete response", len(requests))
	log := s.Logged()
	for what, secret := range map[string]string{"key": key, "encoded key": encoded, "other key": other.Secret, "unknown key": "lk_user_unknown01"} {
		for line := range strings.Lines(log) {
			if strings.Contains(line, secret) {
				t.Errorf("the %s is in the log: %s", what, line)
			}
		}
	}
}

// The names of accounts and plans are texts of customers. A secret in a name is masked in labels, in events and in the log.
func TestNamesWithSecrets(t *testing.T) {
	const secret = "lk_user_0123456789abcdefghijABCDEFGHIJ01"
	s := newServer(t)
	s.Start("store memory names"+subscribe(t, "on"), caddytest.Both("respond ok"))
	ten := s.Tenant("acme of "+secret, 100)
	_, err := s.Service().UpdatePlan(t.Context(), ten.Account, ten.Plan.ID, core.PlanPatch{Name: new("plan of " + secret)})
	s.Must(err)
	s.Validate(ten.Owner, ten.Secret)
	if text := s.Scrape(); strings.Contains(text, secret) || !strings.Contains(text, `account="acme of lk_`) || !strings.Contains(text, `plan="plan of lk_`) {
		t.Errorf("the metrics have a secret, or no decision:\n%s", text)
	}
	_, err = s.Service().UpdateKey(t.Context(), ten.Account, ten.Key.ID, core.KeyPatch{Status: new("inactive")})
	s.Must(err)
	s.WaitLog("invoking subscribed handler", 1)
	if strings.Contains(s.Logged(), secret) {
		t.Errorf("the log has a secret:\n%s", s.Logged())
	}
}
