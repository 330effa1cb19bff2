package main

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	_ "embed"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
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
}

// limitkeeperConfig is the Caddyfile of Limitkeeper. Parameters: [1] the store directive,
// [2] the address of the API over HTTP, [3] the port of the API, [4] the port of the
// gateway, [5] the directive behind the gateway, [6] the header fields that the gateway sends.
//
//go:embed limitkeeper.Caddyfile
var limitkeeperConfig string

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
	return storeConfig{name: "limitkeeper-" + name, title: "on Redis", redis: p,
		directive: func(string) string { return "store redis " + filepath.Join(h.dir, socket) }}, err
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
	config := fmt.Sprintf(limitkeeperConfig, store.directive(filepath.Join(h.dir, store.name)), l.plainAPI, port(l.api), port(l.gateway),
		reverseProxy(upstream), cmp.Or(store.headers, "all"))
	if l.process, err = h.startCaddy(store.name, config, "BENCH_OWNER_KEY="+l.ownerKey); err != nil {
		return nil, err
	}
	if err := l.process.ready(ctx, func() error { _, err := l.call(ctx, "GET", "/health", nil); return err }); err != nil {
		return nil, err
	}
	h.logf("%s: creating %d keys", store.name, h.o.keys)
	return l, l.createKeys(ctx, h.o.keys)
}

// createKeys creates a plan with a limit far above the load, one user for ten keys, and
// the keys.
func (l *limitkeeper) createKeys(ctx context.Context, keys int) error {
	const keysPerUser = 10
	plan, err := l.call(ctx, "POST", "/plans", map[string]any{"name": "Bench", "max_requests": 1<<53 - 1, "request_period": "year"})
	if err != nil {
		return err
	}
	l.plan = plan.ID
	var user resource
	for i := range keys {
		if i%keysPerUser == 0 {
			if user, err = l.call(ctx, "POST", "/users", map[string]any{"name": fmt.Sprint("user ", i/keysPerUser)}); err != nil {
				return err
			}
		}
		key, err := l.call(ctx, "POST", "/keys", map[string]any{"name": fmt.Sprint("key ", i), "user_id": user.UserID, "plan_id": l.plan})
		if err != nil {
			return err
		}
		l.keys = append(l.keys, key.Secret)
	}
	return nil
}

// counted returns the number of requests that Limitkeeper has counted on the plan.
func (l *limitkeeper) counted(ctx context.Context) (int64, error) {
	usage, err := l.call(ctx, "GET", "/plans/"+l.plan+"/usage", nil)
	return usage.Total, err
}

// resource has the members of the answers of the REST API that are used here.
type resource struct {
	ID     string `json:"id"`
	UserID int64  `json:"user_id"`
	Secret string `json:"api_key"`
	Total  int64  `json:"total_requests"`
}

// call calls the REST API with the JSON of in, as a proxy that ends TLS does.
func (l *limitkeeper) call(ctx context.Context, method, path string, in any) (resource, error) {
	var answer struct{ Data resource }
	body, err := json.Marshal(in)
	if err != nil {
		return answer.Data, err
	}
	r, err := http.NewRequestWithContext(ctx, method, "http://"+l.plainAPI+"/functions/v1"+path, bytes.NewReader(body))
	if err != nil {
		return answer.Data, err
	}
	r.Header = http.Header{"Authorization": {"Bearer " + l.ownerKey}, "Content-Type": {"application/json"}, "X-Forwarded-Proto": {"https"}}
	reply, err := http.DefaultClient.Do(r)
	if err != nil {
		return answer.Data, err
	}
	defer reply.Body.Close()
	text, err := io.ReadAll(reply.Body)
	switch {
	case err == nil && reply.StatusCode/100 != 2:
		err = fmt.Errorf("%s %s: %s: %s", method, path, reply.Status, text)
	case err == nil:
		err = json.Unmarshal(text, &answer)
	}
	return answer.Data, err
}
