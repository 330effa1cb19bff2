package main

import (
	"bytes"
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

// ours is our program with an account, a plan and keys.
type ours struct {
	process    *process
	durability string
	api        string // address of the REST API
	gateway    string // address of the gateway
	plainAPI   string // address of the REST API over HTTP, as a proxy with the certificates has it
	debug      string // address of profiles, when they are wanted
	owner      string
	plan       string
	secrets    []string // the values of the keys
	client     *http.Client
}

// oursConfig is the Caddyfile: [1] is the address of the debugging endpoint or off, [2] the
// directory, [3] the durability, [4] the address of the API over HTTP, as if behind a proxy
// that has the certificates, [5] the port of the API, [6] that of the gateway, [7] what
// is behind it.
const oursConfig = `{
	admin %[1]s
	persist_config off
	auto_https disable_redirects
	skip_install_trust
	default_bind 127.0.0.1
	limitkeeper {
		store badger %[2]s {
			durability %[3]s
		}
		service_rate_limit off
		account default {
			key {env.BENCH_OWNER_KEY}
		}
	}
	servers %[4]s {
		trusted_proxies static 127.0.0.1/32
	}
}

localhost:%[5]s {
	limitkeeper_api
}

http://127.0.0.1:%[6]s {
	limitkeeper
	%[7]s
}

http://%[4]s {
	limitkeeper_api
}
`

// startOurs starts our program with a durability and makes the keys.
func (l *lab) startOurs(ctx context.Context, durability, upstream string) (o *ours, err error) {
	name := "limitkeeper-" + durability
	addrs, err := freeAddrs(4)
	if err != nil {
		return nil, err
	}
	o = &ours{durability: durability, api: addrs[0], gateway: addrs[1], plainAPI: addrs[3], debug: addrs[2], owner: "lk_" + (rand.Text() + rand.Text())[:29]}
	admin := "off"
	if l.o.profile != "" {
		admin = o.debug
	}
	dir := filepath.Join(l.dir, name)
	config := fmt.Sprintf(oursConfig, admin, filepath.Join(dir, "store"), durability, o.plainAPI, port(o.api), port(o.gateway), reverseProxy(upstream))
	if o.process, err = l.startCaddy(name, config, "BENCH_OWNER_KEY="+o.owner); err != nil {
		return nil, err
	}
	o.client = &http.Client{Timeout: time.Minute, Transport: &http.Transport{ForceAttemptHTTP2: true,
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true, ServerName: "localhost"}}} // loopback
	if err := o.process.ready(ctx, func() error { return o.call(ctx, "GET", "/health", nil, nil) }); err != nil {
		return nil, err
	}
	l.say("%s: making %d keys", name, l.o.keys)
	return o, o.fill(ctx, l.o.keys)
}

// keysOfUser is how many keys a user has.
const keysOfUser = 10

// fill makes a plan that nobody exhausts, users, and keys with that plan.
func (o *ours) fill(ctx context.Context, keys int) error {
	var plan struct{ Data struct{ ID string } }
	err := o.call(ctx, "POST", "/plans", map[string]any{"name": "Bench", "max_requests": 1<<53 - 1, "request_period": "year"}, &plan)
	if err != nil {
		return err
	}
	o.plan = plan.Data.ID
	var user struct {
		Data struct {
			ID int64 `json:"user_id"`
		}
	}
	for i := range keys {
		if i%keysOfUser == 0 {
			if err := o.call(ctx, "POST", "/users", map[string]any{"name": fmt.Sprint("user ", i/keysOfUser)}, &user); err != nil {
				return err
			}
		}
		var key struct {
			Data struct {
				Secret string `json:"api_key"`
			}
		}
		if err := o.call(ctx, "POST", "/keys", map[string]any{"name": fmt.Sprint("key ", i), "user_id": user.Data.ID, "plan_id": o.plan}, &key); err != nil {
			return err
		}
		o.secrets = append(o.secrets, key.Data.Secret)
	}
	return nil
}

// counted returns how many requests were counted on the plan.
func (o *ours) counted(ctx context.Context) (int64, error) {
	var usage struct {
		Data struct {
			Total int64 `json:"total_requests"`
		}
	}
	err := o.call(ctx, "GET", "/plans/"+o.plan+"/usage", nil, &usage)
	return usage.Data.Total, err
}

// call calls the REST API, and reads the answer into out.
func (o *ours) call(ctx context.Context, method, path string, in, out any) error {
	var body io.Reader
	if in != nil {
		text, err := json.Marshal(in)
		if err != nil {
			return err
		}
		body = bytes.NewReader(text)
	}
	r, err := http.NewRequestWithContext(ctx, method, "https://"+o.api+"/functions/v1"+path, body)
	if err != nil {
		return err
	}
	r.Host = "localhost:" + port(o.api)
	r.Header.Set("Authorization", "Bearer "+o.owner)
	r.Header.Set("Content-Type", "application/json")
	answer, err := o.client.Do(r)
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
