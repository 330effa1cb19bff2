package main

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"time"
)

// limitkeeper is a running Limitkeeper with an account, a plan and keys.
type limitkeeper struct {
	process  *process
	store    storeConfig
	api      string // address of the REST API over HTTPS
	plainAPI string // address of the REST API over HTTP, as behind a proxy that ends TLS
	gateway  string // address of the gateway
	ownerKey string
	plan     string   // id
	keys     []string // values of the keys
	client   *http.Client
}

// limitkeeperConfig is the Caddyfile of Limitkeeper. Parameters: [1] the store directive,
// [2] the address of the API over HTTP, [3] the port of the API, [4] the port of the
// gateway, [5] the directive behind the gateway, [6] the header fields that the gateway sends.
const limitkeeperConfig = `{
	admin off
	persist_config off
	auto_https disable_redirects
	skip_install_trust
	default_bind 127.0.0.1
	log {
		format limitkeeper
	}
	limitkeeper {
		%[1]s
		service_rate_limit off
		account default {
			key {env.BENCH_OWNER_KEY}
		}
	}
	servers %[2]s {
		trusted_proxies static 127.0.0.1/32
	}
}

localhost:%[3]s {
	limitkeeper_api
}

http://127.0.0.1:%[4]s {
	limitkeeper {
		headers %[6]s
	}
	%[5]s
}

http://%[2]s {
	limitkeeper_api
}
`

// storeConfig is a store of Limitkeeper.
type storeConfig struct {
	name      string // of the process
	title     string // in tables
	directive func(dir string) string
	redis     *process // nil without Redis
	headers   string   // of the gateway, see docs/caddyfile.md; "" for all
}

// onBadger returns a store on disk with a durability.
func onBadger(durability string) storeConfig {
	return storeConfig{name: "limitkeeper-" + durability, title: "durability " + durability,
		directive: func(dir string) string {
			return fmt.Sprintf("store badger %s {\n\t\t\tdurability %s\n\t\t}", filepath.Join(dir, "store"), durability)
		}}
}

// withoutHeaders returns a store behind a gateway that sends no rate limit fields.
func withoutHeaders(s storeConfig) storeConfig {
	s.name, s.title, s.headers = s.name+"-no-headers", s.title+", headers none", "none"
	return s
}

// onRedis starts a Redis server and returns a store on it.
func (h *harness) onRedis(ctx context.Context, name string) (storeConfig, error) {
	p, socket, err := h.startRedis(ctx, name)
	return redisConfig(name, filepath.Join(h.dir, socket), p), err
}

func redisConfig(name, socket string, p *process) storeConfig {
	return storeConfig{name: "limitkeeper-" + name, title: "on Redis", redis: p,
		directive: func(string) string { return "store redis " + socket }}
}

// processes returns the processes that do the work: Limitkeeper, and Redis if it is used.
func (l *limitkeeper) processes() []*process {
	if l.store.redis == nil {
		return []*process{l.process}
	}
	return []*process{l.process, l.store.redis}
}

// startLimitkeeper starts Limitkeeper with a store, and creates the keys.
func (h *harness) startLimitkeeper(ctx context.Context, store storeConfig, upstream string) (l *limitkeeper, err error) {
	addrs, err := freeAddrs(3)
	if err != nil {
		return nil, err
	}
	l = &limitkeeper{store: store, api: addrs[0], gateway: addrs[1], plainAPI: addrs[2], ownerKey: "lk_" + (rand.Text() + rand.Text())[:29]}
	config := fmt.Sprintf(limitkeeperConfig, store.directive(filepath.Join(h.dir, store.name)), l.plainAPI, port(l.api), port(l.gateway), reverseProxy(upstream), cmp.Or(store.headers, "all"))
	if l.process, err = h.startCaddy(store.name, config, "BENCH_OWNER_KEY="+l.ownerKey); err != nil {
		return nil, err
	}
	// The certificate is new, from a CA that the system does not know.
	l.client = &http.Client{Timeout: time.Minute, Transport: &http.Transport{ForceAttemptHTTP2: true,
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true, ServerName: "localhost"}}}
	if err := l.process.ready(ctx, func() error { return l.call(ctx, "GET", "/health", nil, nil) }); err != nil {
		return nil, err
	}
	h.logf("%s: creating %d keys", store.name, h.o.keys)
	return l, l.createKeys(ctx, h.o.keys)
}

// createKeys creates a plan with a limit far above the load, one user for ten keys, and
// the keys.
func (l *limitkeeper) createKeys(ctx context.Context, keys int) error {
	const keysPerUser = 10
	var plan struct{ Data struct{ ID string } }
	err := l.call(ctx, "POST", "/plans", map[string]any{"name": "Bench", "max_requests": 1<<53 - 1, "request_period": "year"}, &plan)
	if err != nil {
		return err
	}
	l.plan = plan.Data.ID
	var user struct {
		Data struct {
			ID int64 `json:"user_id"`
		}
	}
	for i := range keys {
		if i%keysPerUser == 0 {
			if err := l.call(ctx, "POST", "/users", map[string]any{"name": fmt.Sprint("user ", i/keysPerUser)}, &user); err != nil {
				return err
			}
		}
		var key struct {
			Data struct {
				Secret string `json:"api_key"`
			}
		}
		if err := l.call(ctx, "POST", "/keys", map[string]any{"name": fmt.Sprint("key ", i), "user_id": user.Data.ID, "plan_id": l.plan}, &key); err != nil {
			return err
		}
		l.keys = append(l.keys, key.Data.Secret)
	}
	return nil
}

// counted returns the number of requests that Limitkeeper has counted on the plan.
func (l *limitkeeper) counted(ctx context.Context) (int64, error) {
	var usage struct {
		Data struct {
			Total int64 `json:"total_requests"`
		}
	}
	err := l.call(ctx, "GET", "/plans/"+l.plan+"/usage", nil, &usage)
	return usage.Data.Total, err
}

// call calls the REST API with the JSON of in, and reads the JSON of the answer into out.
func (l *limitkeeper) call(ctx context.Context, method, path string, in, out any) error {
	var body io.Reader
	if in != nil {
		text, err := json.Marshal(in)
		if err != nil {
			return err
		}
		body = bytes.NewReader(text)
	}
	r, err := http.NewRequestWithContext(ctx, method, "https://"+l.api+"/functions/v1"+path, body)
	if err != nil {
		return err
	}
	r.Host = "localhost:" + port(l.api)
	r.Header.Set("Authorization", "Bearer "+l.ownerKey)
	r.Header.Set("Content-Type", "application/json")
	answer, err := l.client.Do(r)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		return err
	}
	if answer.StatusCode/100 != 2 {
		return fmt.Errorf("%s %s: %s: %s", method, path, answer.Status, bytes.TrimSpace(text))
	}
	if out == nil {
		return nil
	}
	return json.Unmarshal(text, out)
}
