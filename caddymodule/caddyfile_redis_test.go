package caddymodule

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/google/go-cmp/cmp"

	"github.com/limitkeeper/limitkeeper/caddymodule/caddytest"
	"github.com/limitkeeper/limitkeeper/storage/redisstore/redistest"
)

// Every word of store redis produces the documented JSON.
func TestCaddyfileRedis(t *testing.T) {
	for name, tc := range map[string]struct{ text, want string }{
		"an address":  {"redis 127.0.0.1:6379", `{"addresses": ["127.0.0.1:6379"]}`},
		"a Cluster":   {"redis a:1 b:2 c:3", `{"addresses": ["a:1", "b:2", "c:3"]}`},
		"a socket":    {"redis /run/redis.sock", `{"addresses": ["/run/redis.sock"]}`},
		"TLS as such": {"redis a:1 {\ntls\n}", `{"addresses": ["a:1"], "tls": {}}`},
		"everything": {`redis a:1 b:2 {
			sentinel main
			username lk
			password {env.P}
			sentinel_username s
			sentinel_password {file./run/p}
			database 3
			prefix lk:
			timeout 250ms
			history 500
			wait_replicas 1 100ms
			tls {
				ca /ca.pem
				certificate /c.pem /k.pem
				server_name redis.internal
			}
		}`, `{"addresses": ["a:1", "b:2"], "sentinel": "main", "username": "lk", "password": "{env.P}",
			"sentinel_username": "s", "sentinel_password": "{file./run/p}", "database": 3, "prefix": "lk:",
			"timeout": 250000000, "history": 500, "wait_replicas": {"replicas": 1, "timeout": 100000000},
			"tls": {"ca": "/ca.pem", "certificate": "/c.pem", "key": "/k.pem", "server_name": "redis.internal"}}`},
	} {
		t.Run(name, func(t *testing.T) {
			r := new(RedisStore)
			if err := r.UnmarshalCaddyfile(caddyfile.NewTestDispenser(tc.text)); err != nil {
				t.Fatal(err)
			}
			got, err := json.Marshal(r)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(plain(t, tc.want), plain(t, string(got))); diff != "" {
				t.Errorf("JSON (-want +got):\n%s", diff)
			}
		})
	}
}

// An error in a Caddyfile names the word and never quotes a secret.
func TestCaddyfileRedisFaults(t *testing.T) {
	for text, want := range map[string]string{
		"redis":                                     "want one address or more",
		"redis a:1 {\nretries 3\n}":                 `unknown word "retries" in store redis`,
		"redis a:1 {\nprefix a\nprefix b\n}":        "prefix is given twice",
		"redis a:1 {\npassword geheim zwei\n}":      "password: want one argument",
		"redis a:1 {\npassword\n}":                  "password: want one argument",
		"redis a:1 {\ndatabase x\n}":                "database: want a whole number of 0 or more",
		"redis a:1 {\nhistory 0\n}":                 "history: want a whole number of 1 or more",
		"redis a:1 {\ntimeout 0\n}":                 "timeout: want a duration like 500ms",
		"redis a:1 {\nwait_replicas 1\n}":           "wait_replicas: want a number of replicas and a timeout",
		"redis a:1 {\nwait_replicas 0 1s\n}":        "wait_replicas: want a whole number of 1 or more",
		"redis a:1 {\nwait_replicas 1 x\n}":         "wait_replicas: want a duration",
		"redis a:1 {\ntls yes\n}":                   "wrong argument count",
		"redis a:1 {\ntls {\ncertificate geheim\n}": "certificate: want a certificate file and a key file",
	} {
		err := new(RedisStore).UnmarshalCaddyfile(caddyfile.NewTestDispenser(text))
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "geheim zwei") {
			t.Errorf("%q: got %v, want %q", text, err, want)
		}
	}
}

// An invalid config is refused before the store is opened, with the reason.
func TestRedisProvision(t *testing.T) {
	t.Setenv("LK_TEST_ADDRESS", "127.0.0.1:7")
	t.Setenv("LK_TEST_EMPTY", "")
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("geheim\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	r := &RedisStore{Addresses: []string{"{env.LK_TEST_ADDRESS}", "unix//run/redis.sock"}, Password: "{file." + secret + "}"}
	if err := r.Provision(caddy.Context{}); err != nil {
		t.Fatal(err)
	}
	want := []string{"127.0.0.1:7", "/run/redis.sock"}
	if diff := cmp.Diff(want, r.options.Addresses); diff != "" || r.options.Password != "geheim" {
		t.Errorf("got the addresses %q and a password of %d bytes, want %q and 6", r.options.Addresses, len(r.options.Password), want)
	}
	one := []string{"a:1"}
	for want, r := range map[string]*RedisStore{
		"no address is given":                          {},
		"address 1: want <host>:<port>":                {Addresses: []string{"localhost"}},
		"need sentinel":                                {Addresses: []string{"a:1"}, SentinelPassword: "p"},
		"address 2: want <host>:<port>":                {Addresses: []string{"localhost:6379", "localhost:99999"}},
		"holds a brace":                                {Addresses: one, Prefix: "a}"},
		"a Cluster has no database 2":                  {Addresses: []string{"a:1", "b:2"}, Database: 2},
		"waiting for replicas needs a positive number": {Addresses: one, WaitReplicas: &WaitReplicas{Replicas: 1}},
		"password: evaluated placeholder":              {Addresses: one, Password: "{env.LK_TEST_EMPTY}"},
		"no such file":                                 {Addresses: one, TLS: &RedisTLS{CA: "/no/such/file"}},
		"holds no certificate":                         {Addresses: one, TLS: &RedisTLS{CA: secret}},
		"certificate and key must be given together":   {Addresses: one, TLS: &RedisTLS{Certificate: "/c.pem"}},
		"negative timeout or history":                  {Addresses: one, History: -1},
	} {
		if err := r.Provision(caddy.Context{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: got %v, want %q", r, err, want)
		}
	}
}

// Configs with the same servers share the store, whatever their other settings.
func TestRedisPoolKey(t *testing.T) {
	key := func(r RedisStore) string {
		t.Helper()
		if err := r.Provision(caddy.Context{}); err != nil {
			t.Fatal(err)
		}
		return r.PoolKey()
	}
	base := RedisStore{Addresses: []string{"a:1", "b:2"}}
	for _, same := range []RedisStore{
		{Addresses: []string{"b:2", "a:1"}}, {Addresses: base.Addresses, History: 5, Password: "x"},
		{Addresses: base.Addresses, Prefix: "limitkeeper:"}, {Addresses: base.Addresses, WaitReplicas: &WaitReplicas{1, caddy.Duration(time.Second)}},
	} {
		if key(same) != key(base) {
			t.Errorf("%+v: got another key than %+v", same, base)
		}
	}
	for _, other := range []RedisStore{{Addresses: []string{"a:1"}}, {Addresses: base.Addresses, Prefix: "x:"}, {Addresses: base.Addresses, Sentinel: "m"}} {
		if key(other) == key(base) {
			t.Errorf("%+v: got the key of %+v", other, base)
		}
	}
}

// A server with a Redis store serves requests, accepts a reload with other settings, and reports a
// failed start in one line.
func TestRedisServer(t *testing.T) {
	server := redistest.Start(t, "--requirepass", "right")
	config := func(options string) string {
		return "{\nadmin off\npersist_config off\nlimitkeeper {\nstore redis " + server.Addr() + " {\n" + options + "\n}\n}\n}\n"
	}
	load := func(text string) error {
		b, err := caddytest.Adapt(text)
		if err != nil {
			return err
		}
		return caddy.Load(b, true)
	}
	t.Cleanup(func() { _ = caddy.Stop() })
	for _, options := range []string{"history 100", "history 200", "wait_replicas 1 10ms"} {
		if err := load(config("password right\n" + options)); err != nil {
			t.Fatalf("%q: %v", options, err)
		}
	}
	for options, want := range map[string]string{
		"prefix a:\npassword wrong":      "WRONGPASS",
		"prefix b:\npassword right\ntls": "does it speak TLS?",
		"prefix c:":                      "NOAUTH",
	} {
		err := load(config(options))
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "wrong ") || strings.Contains(err.Error(), "\n") {
			t.Errorf("%q: got %v, want one line with %q", options, err, want)
		}
	}
}
