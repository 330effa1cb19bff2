package e2e

import (
	"fmt"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/limitkeeper/limitkeeper/internal/freeport"
)

// maxHistory is the option max_history of the store, in MiB.
const maxHistory = 64

const (
	rogueOwner    = "lk_e2eRogueOwner0000000000000000"
	rogueKeys     = 50 // end-user keys of the account rogue, all over their quota
	roguePlans    = 100
	rogueUsers    = 1000
	bigAnswer     = 16 << 20
	ownerPassword = "correct horse battery staple"
)

// hostileSite is a server with two accounts: the honest one, default, and one that attacks,
// rogue. Gateway, API and dashboard are on TLS.
type hostileSite struct {
	*site
	target
	attackers *attackers
	pid       int
	key       string // the id of the honest end-user key
	browser   *http.Client
	allowed   atomic.Int64 // number of allowed honest requests
	denials   int64        // answers to denials with long paths

	mu     sync.Mutex
	faults []string // the errors and responses of failed honest requests
}

func newHostileSite(t *testing.T) *hostileSite {
	t.Helper()
	h := &hostileSite{site: &site{t: t, dir: t.TempDir(), owner: "lk_e2eOwnersKey00000000000000000",
		env: []string{"GOGC=off", "GOMEMLIMIT=" + memoryLimit, fmt.Sprint("GOMAXPROCS=", 2*runtime.NumCPU())}}}
	h.admin, h.Gateway, h.API = freeport.Take(t), "localhost:"+freeport.Take(t), "localhost:"+freeport.Take(t)
	h.URL = "https://" + h.API
	h.url, h.config = h.URL, filepath.Join(h.dir, "Caddyfile")
	upstream := httptest.NewServer(http.HandlerFunc(answerHostile))
	t.Cleanup(upstream.Close)
	if err := os.WriteFile(h.config, []byte(h.caddyfile(strings.TrimPrefix(upstream.URL, "http://"))), 0o600); err != nil {
		t.Fatal(err)
	}
	h.pid = h.start().cmd.Process.Pid
	h.fill()
	h.attackers = startAttackers(t, &h.target)
	return h
}

// answerHostile is the upstream.
func answerHostile(w http.ResponseWriter, r *http.Request) {
	if !strings.HasSuffix(r.URL.Path, "/big") {
		fmt.Fprint(w, "ok")
		return
	}
	block := make([]byte, 32<<10)
	for sent := 0; sent < bigAnswer; sent += len(block) {
		if _, err := w.Write(block); err != nil {
			return
		}
	}
}

func (h *hostileSite) caddyfile(upstream string) string {
	return fmt.Sprintf(`{
	admin localhost:%[1]s
	persist_config off
	skip_install_trust
	auto_https disable_redirects
	default_bind 127.0.0.1
	log {
		output file %[2]s/server.log
		format limitkeeper
	}
	servers {
		trusted_proxies static private_ranges
		trusted_proxies_strict
	}
	limitkeeper {
		store badger data {
			max_history %[5]dMiB
		}
		history_retention 1d
		service_rate_limit off
		account default {
			key {env.LIMITKEEPER_KEY}
		}
		account rogue {
			key %[6]s
		}
	}
}
https://%[3]s {
	log {
		output file %[2]s/access.log {
			roll_size 16MiB
			roll_keep 2
			roll_uncompressed
		}
		format limitkeeper
	}
	handle /rogue/* {
		limitkeeper {
			account rogue
		}
		reverse_proxy %[7]s
	}
	handle {
		limitkeeper
		reverse_proxy %[7]s
	}
}
https://%[4]s {
	limitkeeper_api
}
`, h.admin, h.dir, h.Gateway, h.API, maxHistory, rogueOwner, upstream)
}

// fill makes the keys of both accounts, and signs the honest owner in once, so that its
// browser is known.
func (h *hostileSite) fill() {
	h.t.Helper()
	h.key, h.Secret = h.newKey(1_000_000_000)
	h.signInWithSecrets(map[string]string{})
	jar, err := cookiejar.New(nil)
	if err != nil {
		h.t.Fatal(err)
	}
	h.browser = &http.Client{Jar: jar, Transport: client.Transport, Timeout: patience,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	if h.signIn(time.Now()); len(h.faults) > 0 {
		h.t.Fatal(h.faults)
	}
	rogue := *h.site
	rogue.owner = rogueOwner
	_, h.Free = rogue.newKey(1_000_000_000)
	for range rogueKeys {
		_, secret := rogue.newKey(1)
		for _, want := range []int{200, 429} {
			if status, err := h.strike(h.t.Context(), "GET", "https://"+h.Gateway+"/rogue/x", nil, map[string]string{"X-API-Key": secret}); status != want {
				h.t.Fatalf("a key with a quota of 1: got %d (%v), want %d", status, err, want)
			}
		}
		h.Denied = append(h.Denied, secret)
	}
	h.fillRogue(&rogue)
}

// fillRogue makes the large plans and the many users of the account rogue.
func (h *hostileSite) fillRogue(rogue *site) {
	h.t.Helper()
	features := make([]string, 40)
	for i := range features {
		features[i] = strings.Repeat("f", 250)
	}
	var plan struct{ ID string }
	for i := range roguePlans {
		rogue.must("POST", "/functions/v1/plans", map[string]any{"name": fmt.Sprint(i), "max_requests": nil, "description": strings.Repeat("x", 4096), "features": features,
			"limits": []any{map[string]any{"meter": "tokens", "max": 1000, "period": "day"}}}, &plan)
	}
	h.RoguePlan = plan.ID
	for i := range rogueUsers {
		rogue.must("POST", "/functions/v1/users", map[string]any{"name": fmt.Sprint(i), "plan_id": plan.ID}, nil)
	}
}

// request is one honest request, through the gateway or to /validate, which has to be
// allowed. It returns how long the answer took since the request was due.
func (h *hostileSite) request(n int, due time.Time) time.Duration {
	var status int
	var body []byte
	var err error
	if n%2 == 0 {
		r, _ := http.NewRequest("GET", "https://"+h.Gateway+"/v1/items", nil)
		r.Header.Set("X-API-Key", h.Secret)
		var resp *http.Response
		if resp, err = client.Do(r); err == nil {
			status = resp.StatusCode
			body, err = io.ReadAll(resp.Body)
			resp.Body.Close()
		}
	} else {
		status, body, err = h.call("POST", "/functions/v1/validate", map[string]string{"api_key": h.Secret, "endpoint": "/v1/items", "method": "GET"})
	}
	if err != nil || status != 200 || n%2 == 1 && !strings.Contains(string(body), `"success":true`) {
		h.fault("request: %d %.200s (%v)", status, body, err)
		return time.Since(due)
	}
	h.allowed.Add(1)
	return time.Since(due)
}

// signIn signs the honest owner in by its password.
func (h *hostileSite) signIn(due time.Time) time.Duration {
	resp, err := h.browser.PostForm(h.url+"/dashboard/sign-in", url.Values{"name": {"default"}, "password": {ownerPassword}})
	if err != nil {
		h.fault("sign-in: %v", err)
		return time.Since(due)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusSeeOther {
		h.fault("sign-in: %d", resp.StatusCode)
	}
	return time.Since(due)
}

// fault notes that an honest request failed.
func (h *hostileSite) fault(format string, args ...any) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.faults = append(h.faults, fmt.Sprintf(format, args...))
}

// takeFaults returns the faults since it was last called.
func (h *hostileSite) takeFaults() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	faults := h.faults
	h.faults = nil
	return faults
}
