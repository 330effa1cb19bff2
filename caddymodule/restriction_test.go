package caddymodule

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"pgregory.net/rapid"

	"github.com/limitkeeper/limitkeeper/caddymodule/caddytest"
	"github.com/limitkeeper/limitkeeper/core"
)

// getRaw sends a GET request with a path that no client library has changed.
func getRaw(t *testing.T, s *server, path, fields string) *http.Response {
	t.Helper()
	conn, err := net.Dial("tcp", "127.0.0.1:"+s.Port)
	s.Must(err)
	t.Cleanup(func() { _ = conn.Close() })
	s.Must(conn.SetDeadline(time.Now().Add(time.Minute)))
	_, err = fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: 127.0.0.1\r\n%s\r\n", path, fields)
	s.Must(err)
	answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
	s.Must(err)
	t.Cleanup(func() { _ = answer.Body.Close() })
	return answer
}

// TestRestrictedEndpoints: a key with allowed endpoints reaches no other path, however it is spelt, through either door. A failure means that
// a read-only key reaches what its owner did not allow.
func TestRestrictedEndpoints(t *testing.T) {
	s, up := newServer(t), newRecorder(t, nil)
	s.Start("store memory", "handle /functions/* {\nlimitkeeper_api\n}\nhandle_path /api/* {\nlimitkeeper\n"+up.proxy()+"\n}\nhandle {\nlimitkeeper\n"+up.proxy()+"\n}")
	ten := s.Tenant("default", 1000)
	_, err := s.Service().UpdateKey(t.Context(), ten.Account, ten.Key.ID, core.KeyPatch{AllowedEndpoints: core.Some([]string{"GET /v1/items*"})})
	s.Must(err)
	for path, want := range map[string]int{
		"/v1/items": 200, "/v1/items/7?x=/v1/admin": 200, "/V1/ITEMS": 200, "/v1//items": 200, "//v1/items": 403, "/v1/%69tems": 200, "/api/v1/items": 200,
		"/v1/admin": 403, "/v1/admin?/v1/items": 403, "/v1/items/../admin": 403, "/v1/items/%2e%2e/admin": 403, "/v1/items/.%2E/admin": 403,
		"/v1/items/..;/admin": 403, "/v1/items/..;a=b/admin": 403, "/v1/items/..%2fadmin": 403, "/v1/items%2f..%2fadmin": 403, "/v1/items/..%5cadmin": 403,
		"/v1/items/%252e%252e/admin": 403, "/v1/admin/../items": 403, "/v1/admin/%2e%2e/items": 403, "/v1/items/7%00": 403, "/v1/item": 403,
		"/api/v1/admin": 403, "/api/v1/items/%2e%2e/admin": 403, "/": 403, "/v1/admin/v1/items": 403,
	} {
		answer := getRaw(t, s, path, "X-API-Key: "+ten.Secret+"\r\n")
		if answer.StatusCode != want {
			t.Errorf("gateway, %s: got %d, want %d", path, answer.StatusCode, want)
		}
		if strings.HasPrefix(path, "/api") {
			continue // only the gateway sees the path after the rewrite
		}
		body := fmt.Sprintf(`{"api_key":%q,"endpoint":%q,"method":"GET"}`, ten.Secret, path)
		got := decoded(t, s.Send(http.MethodPost, "/functions/v1/validate", body, "Authorization: Bearer "+ten.Owner, "X-Forwarded-Proto: https").Text)
		if details, _ := got["details"].(map[string]any); got["success"] != (want == 200) || want == 403 && (got["code"] != "KEY_RESTRICTED" || details["field"] != "endpoint") {
			t.Errorf("validate, %s: got %v, want success %v", path, got, want == 200)
		}
	}
}

// TestOpaqueTarget: a target in which Caddy sees no path is refused, also by a gateway that observes.
func TestOpaqueTarget(t *testing.T) {
	for _, option := range []string{"require scope write", "observe"} {
		t.Run(option, func(t *testing.T) {
			s, up := newServer(t), newRecorder(t, nil)
			s.Start("store memory", "rewrite * /v1/items{path}\nlimitkeeper {\n"+option+"\n}\n"+up.proxy())
			ten := s.Tenant("default", 10)
			answer := getRaw(t, s, "x:http://example.com/v1/admin", "X-API-Key: "+ten.Secret+"\r\n")
			if answer.StatusCode != 400 || up.count.Load() > 0 {
				t.Errorf("got %d, and %d requests at the upstream, want 400 and none", answer.StatusCode, up.count.Load())
			}
		})
	}
}

// TestRestrictedAddresses: a key with allowed addresses is used from these only. A client that chooses its own header fields stays outside.
func TestRestrictedAddresses(t *testing.T) {
	for _, test := range []struct {
		options, allowed, fields string
		want                     int
	}{
		{"", "127.0.0.1", "", 200},
		{"", "::1/128", "", 403},
		{"", "192.0.2.7", "X-Forwarded-For: 192.0.2.7\r\nX-Real-IP: 192.0.2.7\r\nForwarded: for=192.0.2.7\r\n", 403},
		{"trusted_proxies static 127.0.0.1", "192.0.2.7", "X-Forwarded-For: 192.0.2.7\r\n", 200},
		{"trusted_proxies static 127.0.0.1", "192.0.2.7", "X-Forwarded-For: ::ffff:192.0.2.7\r\n", 200},
		{"trusted_proxies static 127.0.0.1\ntrusted_proxies_strict", "192.0.2.7", "X-Forwarded-For: 192.0.2.7, 198.51.100.1\r\n", 403},
	} {
		t.Run(test.allowed+" "+test.options, func(t *testing.T) {
			s, up := newServer(t), newRecorder(t, nil)
			s.Must(s.Load(strings.Replace(s.Config("store memory", caddytest.Both(up.proxy())), "trusted_proxies static private_ranges", test.options, 1)))
			ten := s.Tenant("default", 10)
			_, err := s.Service().UpdateKey(t.Context(), ten.Account, ten.Key.ID, core.KeyPatch{AllowedIPs: core.Some([]string{test.allowed})})
			s.Must(err)
			if answer := getRaw(t, s, "/", "X-API-Key: "+ten.Secret+"\r\n"+test.fields); answer.StatusCode != test.want {
				t.Errorf("got %d, want %d", answer.StatusCode, test.want)
			}
			if test.options == "" {
				return // the API takes no plain HTTP
			}
			if got := decoded(t, s.Validate(ten.Owner, ten.Secret).Text); got["code"] != "KEY_RESTRICTED" { // without the address of the user
				t.Errorf("validate without an address: got %v, want a refusal", got)
			}
		})
	}
}

// TestRequire: the gateway refuses a key without a scope that it requires, and a plan without a feature, and counts nothing.
func TestRequire(t *testing.T) {
	s, up := newServer(t), newRecorder(t, nil)
	s.Start("store memory", "limitkeeper {\nrequire scope write\nrequire feature reports search\nerrors\n}\n"+
		up.proxy()+
		" {\nheader_up X-Seen \"{http.limitkeeper.scopes}|{http.limitkeeper.feature.reports}|{http.limitkeeper.feature.none}\"\n}\nhandle_errors {\nrespond \"{http.limitkeeper.outcome} {http.error.message}\"\n}")
	ten := s.Tenant("default", 10)
	change := func(scopes core.Optional[[]string], features ...string) {
		_, err := s.Service().UpdateKey(t.Context(), ten.Account, ten.Key.ID, core.KeyPatch{Scopes: scopes})
		s.Must(err)
		_, err = s.Service().UpdatePlan(t.Context(), ten.Account, ten.Plan.ID, core.PlanPatch{Features: core.Some(features)})
		s.Must(err)
	}
	change(core.Some([]string{"read"}), "reports", "search")
	if got := s.Get("/", "X-API-Key: "+ten.Secret); got.StatusCode != 403 || got.Text != "restricted The API key lacks the scope write" {
		t.Errorf("without the scope: got %d %s", got.StatusCode, got.Text)
	}
	change(core.Some([]string{"read", "write"}), "reports")
	if got := s.Get("/", "X-API-Key: "+ten.Secret); got.StatusCode != 403 || got.Text != "restricted The plan lacks the feature search" {
		t.Errorf("without the feature: got %d %s", got.StatusCode, got.Text)
	}
	change(core.Some([]string{"read", "write"}), "reports", "search")
	if got := s.Get("/", "X-API-Key: "+ten.Secret); got.StatusCode != 200 || up.last.Load().Header.Get("X-Seen") != "read write|true|" || got.Header.Get("X-RateLimit-Remaining") != "9" {
		t.Errorf("with both: got %d %v, and upstream %v", got.StatusCode, got.Header, up.last.Load().Header)
	}
	if n := up.count.Load(); n != 1 {
		t.Errorf("%d requests reached the upstream, want 1", n)
	}
	list, _, err := s.Service().KeyHistory(t.Context(), ten.Account, ten.Key.ID, core.Page{Number: 1, Size: 9})
	s.Must(err)
	if len(list) != 3 || list[1].Reason != core.ReasonRestricted || list[2].Reason != core.ReasonRestricted {
		t.Errorf("history: got %+v, want two refusals with the reason restricted", list)
	}
	if !strings.Contains(s.Scrape(), `outcome="restricted"`) {
		t.Error("no metric has the outcome restricted")
	}
}

// TestPatternsMatchAsCaddy: a pattern selects the paths that Caddy's matcher path selects.
func TestPatternsMatchAsCaddy(t *testing.T) {
	text := func(alphabet string) *rapid.Generator[string] {
		return rapid.StringOfN(rapid.SampledFrom([]rune(alphabet)), 0, 12, -1)
	}
	rapid.Check(t, func(t *rapid.T) {
		pattern, path := "/"+text("/aB*.*").Draw(t, "pattern"), "/"+text("/AABb.").Draw(t, "path")
		if rapid.Bool().Draw(t, "leading star") {
			pattern = "*" + pattern[1:]
		}
		var k core.Key
		if (core.KeyPatch{AllowedEndpoints: core.Some([]string{pattern})}).Apply(&k, time.Now()) != nil {
			return
		}
		if strings.HasPrefix(path, "//") || strings.Contains(path+"/", "/./") || strings.Contains(path+"/", "/../") {
			return // such a path is never allowed
		}
		m := caddyhttp.MatchPath{pattern}
		if err := m.Provision(caddy.Context{}); err != nil {
			t.Fatal(err)
		}
		r := (&http.Request{Method: "GET", URL: &url.URL{Path: path}}).WithContext(context.WithValue(context.Background(), caddy.ReplacerCtxKey, caddy.NewReplacer()))
		want, err := m.MatchWithError(r)
		if err != nil {
			t.Fatal(err)
		}
		if got := k.Restrictions.Compiled().Refusal(&core.Need{Method: "GET", Path: r.URL.EscapedPath()}, nil) == nil; got != want {
			t.Fatalf("pattern %q, path %q: got %v, want %v", pattern, path, got, want)
		}
	})
}
