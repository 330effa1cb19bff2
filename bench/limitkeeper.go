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
	process  *process
	kept     kept
	api      string // address of the REST API
	gateway  string // address of the gateway
	plainAPI string // address of the REST API over HTTP, as a proxy with the certificates has it
	debug    string // address of profiles, when they are wanted
	owner    string
	plan     string
	secrets  []string // the values of the keys
	client   *http.Client
}

// oursConfig is the Caddyfile: [1] is the address of the debugging endpoint or off, [2] the
// directive for the store, [3] the address of the API over HTTP, as if behind a proxy
// that has the certificates, [4] the port of the API, [5] that of the gateway, [6] what
// is behind it.
const oursConfig = `{
	admin %[1]s
	persist_config off
	auto_https disable_redirects
	skip_install_trust
	default_bind 127.0.0.1
	limitkeeper {
		%[2]s
		service_rate_limit off
		account default {
			key {env.BENCH_OWNER_KEY}
		}
	}
	servers %[3]s {
		trusted_proxies static 127.0.0.1/32
	}
}

localhost:%[4]s {
	limitkeeper_api
}

http://127.0.0.1:%[5]s {
	limitkeeper
	%[6]s
}

http://%[3]s {
	limitkeeper_api
}
`

// kept is where ours keeps what it keeps.
type kept struct {
	name      string                  // of the process
	called    string                  // in tables
	directive func(dir string) string // for the store, given a directory of its own
	servers   []*process              // that do a part of its work
}

// onBadger is a store on disk with a durability.
func onBadger(durability string) kept {
	return kept{name: "limitkeeper-" + durability, called: "durability " + durability,
		directive: func(dir string) string {
			return fmt.Sprintf("store badger %s {\n\t\t\tdurability %s\n\t\t}", filepath.Join(dir, "store"), durability)
		}}
}

// cpu returns the processor time of ours with the servers that do a part of its work.
func (o *ours) cpu() func(context.Context) (time.Duration, error) {
	return cpuOf(each(append([]*process{o.process}, o.kept.servers...), (*process).pid))
}

// startOurs starts our program with a store and makes the keys.
func (l *lab) startOurs(ctx context.Context, k kept, upstream string) (o *ours, err error) {
	addrs, err := freeAddrs(4)
	if err != nil {
		return nil, err
	}
	o = &ours{kept: k, api: addrs[0], gateway: addrs[1], plainAPI: addrs[3], debug: addrs[2], owner: "lk_" + (rand.Text() + rand.Text())[:29]}
	admin := "off"
	if l.o.profile != "" {
		admin = o.debug
	}
	config := fmt.Sprintf(oursConfig, admin, k.directive(filepath.Join(l.dir, k.name)), o.plainAPI, port(o.api), port(o.gateway), reverseProxy(upstream))
	if o.process, err = l.startCaddy(k.name, config, "BENCH_OWNER_KEY="+o.owner); err != nil {
		return nil, err
	}
	o.client = &http.Client{Timeout: time.Minute, Transport: &http.Transport{ForceAttemptHTTP2: true,
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true, ServerName: "localhost"}}} // loopback
	if err := o.process.ready(ctx, func() error { return o.call(ctx, "GET", "/health", nil, nil) }); err != nil {
		return nil, err
	}
	l.say("%s: making %d keys", k.name, l.o.keys)
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
