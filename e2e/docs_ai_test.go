package e2e

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// startAI runs the Caddyfile of a section of docs/recipes.md, in front of an upstream that answers as the API of OpenAI does. A request to /broken gets 500.
func startAI(t *testing.T, heading string) *site {
	t.Helper()
	up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/broken" {
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
		var body struct{ Model string }
		_ = json.NewDecoder(r.Body).Decode(&body)
		w.Header().Set("Content-Type", "application/json")
		_, _ = fmt.Fprintf(w, `{"model":%q,"choices":[],"usage":{"prompt_tokens":10,"completion_tokens":20}}`, body.Model)
	}))
	t.Cleanup(up.Close)
	return startDocumented(t, strings.ReplaceAll(section(t, "docs/recipes.md", heading)["caddyfile"], "127.0.0.1:9000", up.Listener.Addr().String()))
}

// postDocumented sends a JSON body with the documented key.
func (s *site) postDocumented(t *testing.T, path, body string) *http.Response {
	t.Helper()
	r, err := http.NewRequest("POST", "http://127.0.0.1:"+s.port+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Host = "gateway.example.com"
	r.Header.Set("X-API-Key", documentedSecret)
	r.Header.Set("Content-Type", "application/json")
	resp, err := client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	return resp
}

// With the Caddyfile and the prices of docs/recipes.md, an AI gateway holds max_tokens, charges what the answer says, and refuses as that API does. When
// this fails, whoever has copied the recipe gives tokens away, or charges too many.
func TestDocumentedAI(t *testing.T) {
	t.Parallel()
	const heading = "## Charge AI requests by their usage"
	s := startAI(t, heading)
	s.apply(t, section(t, "docs/recipes.md", heading)["yaml"])
	s.apply(t, fmt.Sprintf("account: default\nusers: [{name: u, plan: AI, keys: [{name: k, key_sha256: %x}]}]\n", sha256.Sum256([]byte(documentedSecret))))
	wantAnswer(t, s.postDocumented(t, "/v1/chat/completions", `{"model":"gpt-4o-mini","max_tokens":100}`), 200, `"usage"`)
	time.Sleep(100 * time.Millisecond) // the hold ends after the answer
	resp := s.postDocumented(t, "/v1/chat/completions", `{"model":"gpt-4o-mini","max_tokens":100}`)
	_ = resp.Body.Close()
	want := fmt.Sprintf(`"tokens-month";r=%d;`, 2_000_000-30-100) // the first answer has used 30, and the second request holds 100
	if got := resp.Header.Get("RateLimit"); !strings.Contains(got, want) {
		t.Errorf("RateLimit: got %s, want %s", got, want)
	}
	_ = s.postDocumented(t, "/v1/chat/completions", `{"model":"a model without a price of its own","max_tokens":100}`).Body.Close()
	time.Sleep(100 * time.Millisecond)
	resp = s.postDocumented(t, "/v1/chat/completions", `{"model":"gpt-4o-mini","max_tokens":100}`)
	_ = resp.Body.Close()
	want = fmt.Sprintf(`"spend-month";r=%d;`, 5_000_000_000-2*(10*15+20*60)-(10*1500+20*6000))
	if got := resp.Header.Get("RateLimit"); !strings.Contains(got, want) {
		t.Errorf("RateLimit after a model without a price of its own: got %s, want %s", got, want)
	}
	s.apply(t, "account: default\nplans: [{name: AI, limits: [{meter: tokens, max: 1, period: month}]}]\n")
	wantAnswer(t, s.postDocumented(t, "/v1/chat/completions", `{"model":"gpt-4o-mini"}`), 429, `"insufficient_quota"`)
}

// With the Caddyfile of docs/recipes.md, answers with 500 cost nothing.
func TestDocumentedSuccess(t *testing.T) {
	t.Parallel()
	s := startAI(t, "## Charge only successful requests")
	for range 3 {
		wantAnswer(t, s.postDocumented(t, "/broken", "{}"), 500, "")
	}
	time.Sleep(100 * time.Millisecond) // the last hold ends after the answer
	resp := s.postDocumented(t, "/v1/chat/completions", "{}")
	_ = resp.Body.Close()
	if left := resp.Header.Get("X-RateLimit-Remaining"); left != "999" {
		t.Errorf("after failures: got %s requests left, want 999", left)
	}
}
