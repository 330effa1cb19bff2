package caddymodule

import (
	"encoding/json"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	_ "github.com/caddyserver/caddy/v2/modules/standard"
	"github.com/google/go-cmp/cmp"

	"github.com/limitkeeper/limitkeeper/caddymodule/caddytest"
)

// Every word of the Caddyfile produces the documented JSON.
func TestCaddyfileMeaning(t *testing.T) {
	for _, tc := range []struct {
		name, text string
		into       caddyfile.Unmarshaler
		want       string
	}{
		{"app, nothing", `limitkeeper`, new(App), `{}`},
		{"app, empty block", "limitkeeper {\n}", new(App), `{}`},
		{"app, everything", `limitkeeper {
			store badger /var/lib/lk {
				durability power
				min_free 1GiB
				max_history 20GiB
			}
			key_cache 5
			history_retention 2d
			service_rate_limit 10/1m30s
			thresholds 50 90 100
			max_users 6
			max_keys 7
			max_plans 8
			webhook_allow_private
			account one {
				key {env.ONE}
			}
			account two {
				key {env.TWO}
				key_prefix acme_live_
			}
		}`, new(App), `{"store": {"module": "badger", "dir": "/var/lib/lk", "durability": "power", "min_free": 1073741824, "max_history": 21474836480},
			"key_cache": 5, "history_retention": 172800000000000, "service_rate_limit": "10/1m30s", "thresholds": [50, 90, 100],
			"max_users": 6, "max_keys": 7, "max_plans": 8, "webhook_allow_private": true,
			"accounts": [{"name": "one", "key": "{env.ONE}"}, {"name": "two", "key": "{env.TWO}", "key_prefix": "acme_live_"}]}`},
		{"app, rate off", "limitkeeper {\nservice_rate_limit off\n}", new(App), `{"service_rate_limit": "off"}`},
		{"badger without a directory", "badger", new(BadgerStore), `{}`},
		{"api", "limitkeeper_api", new(API), `{}`},
		{"api, dashboard off", "limitkeeper_api {\ndashboard off\n}", new(API), `{"dashboard": false}`},
		{"api, people", "limitkeeper_api {\npeople {http.auth.user.email}\n}", new(API), `{"people": "{http.auth.user.email}"}`},
		{"api, dashboard on", "limitkeeper_api {\ndashboard on\n}", new(API), `{"dashboard": true}`},
		{"gateway, nothing", "limitkeeper", new(Gateway), `{}`},
		{"gateway, everything", `limitkeeper {
			account acme
			key query api_key
			key cookie session
			key bearer
			key header X-Key
			keep_key
			cost {http.request.header.X-Cost}
			request_id header Idempotency-Key
			on_store_error allow
			observe
			errors
			headers x-ratelimit
		}`, new(Gateway), `{"account": "acme", "keys": [{"in": "query", "name": "api_key"}, {"in": "cookie", "name": "session"},
			{"in": "bearer"}, {"in": "header", "name": "X-Key"}], "keep_key": true, "cost": "{http.request.header.X-Cost}",
			"request_id": {"in": "header", "name": "Idempotency-Key"}, "on_store_error": "allow", "observe": true, "errors": true, "headers": "x-ratelimit"}`},
		{"gateway, costs", "limitkeeper {\ncost requests 2\ncost tokens {vars.tokens}\ncost spend 1000000000\n}", new(Gateway),
			`{"cost": 2, "costs": {"spend": 1000000000, "tokens": "{vars.tokens}"}}`},
		{"gateway, number as cost", "limitkeeper {\ncost 0\n}", new(Gateway), `{"cost": 0}`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if err := tc.into.UnmarshalCaddyfile(caddyfile.NewTestDispenser(tc.text)); err != nil {
				t.Fatal(err)
			}
			got, err := json.Marshal(tc.into)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(plain(t, tc.want), plain(t, string(got))); diff != "" {
				t.Errorf("JSON (-want +got):\n%s", diff)
			}
		})
	}
}

func plain(t *testing.T, text string) (v any) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Fatalf("%v in %s", err, text)
	}
	return v
}

// An error in a Caddyfile names file and line, and is never accepted with another meaning.
func TestCaddyfileErrors(t *testing.T) {
	app := func(s string) string { return "{\n\tlimitkeeper {\n\t\t" + s + "\n\t}\n}\n" }
	site := func(s string) string { return ":8080 {\n\tlimitkeeper {\n\t\t" + s + "\n\t}\n}\n" }
	for _, tc := range []struct{ name, text, want, line string }{
		{"unknown word in the app", app("frobnicate"), `unknown word "frobnicate"`, "3"},
		{"argument of the app", "{\n\tlimitkeeper x\n}\n", "wrong argument count", "2"},
		{"app twice", "{\n\tlimitkeeper\n\tlimitkeeper\n}\n", "given twice", "3"},
		{"store twice", app("store badger\nstore badger"), "store is given twice", "4"},
		{"unknown store", app("store frob"), `there is no store "frob" in this build: want badger or redis`, "3"},
		{"store without a kind", app("store"), "wrong argument count", "3"},
		{"two directories", app("store badger a b"), "wrong argument count", "3"},
		{"unknown word in the store", app("store badger a {\nfrob\n}"), `unknown word "frob"`, "4"},
		{"durability that is none", app("store badger a {\ndurability eternal\n}"), `want process or power, got "eternal"`, "4"},
		{"a word of the store in the app", app("max_history 1GB"), `unknown word "max_history" in the global option limitkeeper: it is a word of the block of store badger; `, "3"},
		{"a word of the app in the store", app("store badger a {\nmax_users 1\n}"), ": it is a word of the global option limitkeeper; ", "4"},
		{"durability twice", app("store badger a {\ndurability power\ndurability power\n}"), "given twice", "5"},
		{"max_history that is no size", app("store badger a {\nmax_history much\n}"), `want a size with its unit, like 20GB, and at least 64MiB; got "much"`, "4"},
		{"max_history of nothing", app("store badger a {\nmax_history 0\n}"), `got "0"`, "4"},
		{"max_history without a unit", app("store badger a {\nmax_history 100000000\n}"), `with its unit`, "4"},
		{"max_history below a segment", app("store badger a {\nmax_history 63MiB\n}"), `at least 64MiB; got "63MiB"`, "4"},
		{"max_history without a size", app("store badger a {\nmax_history\n}"), "wrong argument count", "4"},
		{"max_history twice", app("store badger a {\nmax_history 1GB\nmax_history 1GB\n}"), "given twice", "5"},
		{"min_free without a unit", app("store badger a {\nmin_free 100000000\n}"), `min_free: want a size with its unit`, "4"},
		{"min_free below a memtable", app("store badger a {\nmin_free 31MiB\n}"), `at least 32MiB; got "31MiB"`, "4"},
		{"key_cache that is no number", app("key_cache many"), `got "many"`, "3"},
		{"key_cache of nothing", app("key_cache 0"), `got "0"`, "3"},
		{"cap that is no number", app("max_users many"), `max_users: want a whole number of 1 or more, got "many"`, "3"},
		{"cap of nothing", app("max_keys 0"), `max_keys: want a whole number of 1 or more, got "0"`, "3"},
		{"cap twice", app("max_plans 1\nmax_plans 1"), "max_plans is given twice", "4"},
		{"key_cache twice", app("key_cache 1\nkey_cache 1"), "given twice", "4"},
		{"retention that is none", app("history_retention long"), `got "long"`, "3"},
		{"retention below zero", app("history_retention -1h"), `got "-1h"`, "3"},
		{"no thresholds", app("thresholds"), "wrong argument count", "3"},
		{"threshold that is no number", app("thresholds 80%"), `thresholds: want whole numbers of per cent without a sign, such as 80 100, got "80%"`, "3"},
		{"threshold below the half", app("thresholds 49 80"), "thresholds: want whole numbers of per cent from 50 to 100, got 49", "3"},
		{"threshold beyond the limit", app("thresholds 80 101"), "got 101", "3"},
		{"thresholds in disorder", app("thresholds 90 80"), "want the thresholds in ascending order, got 80 after 90", "3"},
		{"threshold twice", app("thresholds 80 80"), "80 is given twice", "3"},
		{"too many thresholds", app("thresholds 50 51 52 53 54 55 56 57 58 59 60"), "want 1 to 10 thresholds in per cent, such as 80 100, got 11", "3"},
		{"thresholds twice", app("thresholds 80\nthresholds 90"), "thresholds is given twice", "4"},
		{"rate without a span", app("service_rate_limit 10"), `got "10"`, "3"},
		{"rate of nothing", app("service_rate_limit 0/1m"), `got "0/1m"`, "3"},
		{"rate beyond reason", app("service_rate_limit 99999999/1m"), `up to 1000000`, "3"},
		{"account without a name", app("account {\nkey x\n}"), "wrong argument count", "3"},
		{"account without a key", app("account a"), "account a has no line with its owner's key", "3"},
		{"account twice", app("account a {\nkey x\n}\naccount a {\nkey y\n}"), "account a is given twice", "6"},
		{"key of the account twice", app("account a {\nkey x\nkey y\n}"), "key is given twice", "5"},
		{"key prefix without an underscore", app("account a {\nkey x\nkey_prefix acme\n}"), "account a: key_prefix: a key prefix ends with _", "5"},
		{"key prefix of the service", app("account a {\nkey x\nkey_prefix lk_live_\n}"), "does not begin with lk_", "5"},
		{"key prefix twice", app("account a {\nkey x\nkey_prefix acme_\nkey_prefix other_\n}"), "key_prefix is given twice", "6"},
		{"no key prefix", app("account a {\nkey x\nkey_prefix\n}"), "wrong argument count", "5"},
		{"unknown word in the account", app("account a {\nkye x\n}"), `unknown word "kye"`, "4"},
		{"block where none belongs", app("key_cache 1 {\nx\n}"), "unexpected block", "4"},
		{"owner's key where a word belongs", app("account a {\nlk_0123456789abcdefghijklmnopqrs\n}"), `unknown word "lk_***"`, "4"},
		{"owner's key and more", app("account a {\nkey lk_0123456789abcdefghijklmnopqrs x\n}"), "want one owner's key after the word key, got 2", "4"},
		{"unknown word in the gateway", site("frob"), `unknown word "frob"`, "3"},
		{"argument of the gateway", ":8080 {\n\tlimitkeeper frob\n}\n", "wrong argument count", "2"},
		{"observe with an argument", site("observe yes"), `observe takes no argument, got "yes"`, "3"},
		{"observe twice", site("observe\nobserve"), "observe is given twice", "4"},
		{"account of the gateway twice", site("account a\naccount b"), "account is given twice", "4"},
		{"key without a place", site("key"), "key: want one place on a line: header <name>, bearer, query <name> or cookie <name>; got 0 words", "3"},
		{"two places in a line", site("key header X bearer"), "key: want one place on a line: header <name>, bearer, query <name> or cookie <name>; got 3 words", "3"},
		{"identify without a placeholder", site("identify ann"), `identify: want a placeholder such as {http.auth.user.id}, got "ann"`, "3"},
		{"identify beside key", site("identify {http.auth.user.id}\nkey bearer"), "identify: it stands in place of a key", "4"},
		{"identify without the name of the plan", site("identify {http.auth.user.id} plan"), "identify: want a placeholder, and plan with its name", "3"},
		{"identify with two placeholders", site("identify {http.vars.a}{http.vars.b}"), "identify: want one placeholder and nothing else", "3"},
		{"identify with a scope", site("identify {http.auth.user.id}\nrequire scope write"), "identify: a caller without a key has no scopes", "4"},
		{"identify twice", site("identify {http.auth.user.id}\nidentify {http.auth.user.id}"), "given twice", "4"},
		{"a misspelt word", site("on_store_eror allow"), `unknown word "on_store_eror" in the directive limitkeeper: did you mean on_store_error?; its words are account, charge, clamp, cost, count_on, errors, headers, identify, keep_key, key, observe, on_store_error, on_unknown, problem_json, request_id, require`, "3"},
		{"charge without a source", site("charge tokens"), "charge: want prices or a meter, and where answers have the usage: charge prices from openai", "3"},
		{"charge from an unknown API", site("charge prices from mistral"), `charge: want from openai, anthropic, gemini, header <name>, json <path> or mcp, got from "mistral"`, "3"},
		{"charge prices from a field", site("charge prices from header X-Cost"), "charge prices: a field of the header is one number, and prices need quantities", "3"},
		{"charge from a field without its name", site("charge tokens from header"), "charge: want a name after header and json only", "3"},
		{"charge with a bad factor", site("charge tokens from openai output*much"), `charge: want a quantity and its factor such as output*4, got "output*much"`, "3"},
		{"charge of no meter", site("charge Tokens from openai"), `charge: want prices or the name of a meter, got "Tokens"`, "3"},
		{"a bad count_on", site("count_on sometimes"), `count_on: want always, success or not_5xx, got "sometimes"`, "3"},
		{"a bad on_unknown", site("on_unknown ask"), `on_unknown: want keep or release, got "ask"`, "3"},
		{"clamp without its cost", site("clamp max_tokens"), `clamp: no cost is read from the member "max_tokens" of the request: add cost tokens request max_tokens 4096`, "4"},
		{"a cost of a member without default", site("cost tokens request max_tokens"), "want a default after the member of the request: cost tokens request max_tokens 4096", "3"},
		{"key in the body", site("key body x"), `"body": want header`, "3"},
		{"key in a header without a name", site("key header"), "key source header: the name is missing, such as X-API-Key", "3"},
		{"bearer with a name", site("key bearer x"), "takes no name", "3"},
		{"key twice", site("key header x-a\nkey header X-A"), "given twice", "4"},
		{"cost below zero", site("cost -1"), `cost: want a whole number from 0 to 1000000, a placeholder, or a meter and its cost, got "-1"`, "3"},
		{"cost twice", site("cost 1\ncost requests 1"), "the cost of requests is given twice", "4"},
		{"cost of a meter twice", site("cost tokens 1\ncost tokens 1"), "the cost of tokens is given twice", "4"},
		{"cost of a meter too high", site("cost tokens 1000000001"), `got "tokens 1000000001"`, "3"},
		{"cost of no meter", site("cost Tokens 1"), `got "Tokens 1"`, "3"},
		{"cost with too many words", site("cost tokens 1 2"), "wrong argument count", "3"},
		{"cost too high", site("cost 1000001"), `got "1000001"`, "3"},
		{"cost of a placeholder that does not end", site("cost {http.request.header.X-Cost"), `got "{http.request.header.X-Cost"`, "3"},
		{"request_id without a place", site("request_id"), "wrong argument count", "3"},
		{"request_id in the query", site("request_id query id"), `request_id "query": want header`, "3"},
		{"request_id in a header without a name", site("request_id header"), "request_id header: the name is missing", "3"},
		{"request_id in a header with a bad name", site("request_id header a:b"), `"a:b" is not a valid name`, "3"},
		{"request_id in the host", site("request_id header host"), "Host cannot carry an id", "3"},
		{"request_id in two headers", site("request_id header a b"), "wrong argument count", "3"},
		{"request_id twice", site("request_id header a\nrequest_id header b"), "request_id is given twice", "4"},
		{"request_id with a block", site("request_id header a {\nx\n}"), "unexpected block", "4"},
		{"headers without a value", site("headers"), "wrong argument count", "3"},
		{"unknown value of headers", site("headers some"), `headers: want all or x-ratelimit or ietf or none, got "some"`, "3"},
		{"headers twice", site("headers all\nheaders none"), "headers is given twice", "4"},
		{"on_store_error that is none", site("on_store_error maybe"), `want deny or allow, got "maybe"`, "3"},
		{"unknown word in the api", ":8080 {\n\tlimitkeeper_api {\n\t\tfrob\n\t}\n}\n", `unknown word "frob"`, "3"},
		{"people without a placeholder", ":8080 {\n\tlimitkeeper_api {\n\t\tpeople ann@example.com\n\t}\n}\n", "want one placeholder and nothing else", "3"},
		{"people with more than a placeholder", ":8080 {\n\tlimitkeeper_api {\n\t\tpeople {http.auth.user.id}@example.com\n\t}\n}\n", "want one placeholder and nothing else", "3"},
		{"people from the query", ":8080 {\n\tlimitkeeper_api {\n\t\tpeople {http.request.uri.query.email}\n\t}\n}\n", "no authentication sets {http.request.uri.query.email}", "3"},
		{"people from the environment", ":8080 {\n\tlimitkeeper_api {\n\t\tpeople {env.EMAIL}\n\t}\n}\n", "no authentication sets {env.EMAIL}", "3"},
		{"people without an argument", ":8080 {\n\tlimitkeeper_api {\n\t\tpeople\n\t}\n}\n", "wrong argument count", "3"},
		{"people twice", ":8080 {\n\tlimitkeeper_api {\n\t\tpeople {http.auth.user.id}\n\t\tpeople {http.auth.user.email}\n\t}\n}\n", "people is given twice", "4"},
		{"people in the gateway", site("people {http.auth.user.id}"), "it is a word of the directive limitkeeper_api", "3"},
		{"dashboard that is neither", ":8080 {\n\tlimitkeeper_api {\n\t\tdashboard maybe\n\t}\n}\n", "want off or on", "3"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := caddytest.Adapt(tc.text)
			if err == nil {
				t.Fatal("adapted, want an error")
			}
			if got := err.Error(); !strings.Contains(got, tc.want) || !strings.Contains(got, "Caddyfile:"+tc.line) {
				t.Errorf("got %q, want %q at Caddyfile:%s", got, tc.want, tc.line)
			}
		})
	}
}

// The gateway runs before every handler that could answer the request, and the API runs before the
// site's own handlers.
func TestDirectiveOrder(t *testing.T) {
	b, err := caddytest.Adapt(":8080 {\n\trespond ok\n\tbasic_auth {\n\t\ta $2a$14$Zkx19XLiW6VYouLHR5NmfOFU0z2GTNmpkT/5qqR7hx4IjWJPDhjvG\n\t}\n\tlimitkeeper_api\n\tlimitkeeper\n}\n")
	if err != nil {
		t.Fatal(err)
	}
	last := -1
	for _, handler := range []string{`"limitkeeper"`, `"authentication"`, `"limitkeeper_api"`, `"static_response"`} {
		at := strings.Index(string(b), `"handler":`+handler)
		if at <= last {
			t.Errorf("%s is at %d, want it behind %d in\n%s", handler, at, last, b)
		}
		last = at
	}
}

// FuzzCaddyfile: no text makes the parser panic, and the JSON of an accepted text decodes to an equal
// config.
func FuzzCaddyfile(f *testing.F) {
	for _, s := range []string{
		"limitkeeper", "limitkeeper {\nstore badger x {\ndurability power\n}\naccount a {\nkey b\n}\n}",
		"limitkeeper {\nkey header X\nkey bearer\ncost 3\nrequest_id header Id\nobserve\n}", "badger d", "limitkeeper_api {\ndashboard off\n}",
		"limitkeeper { {", "limitkeeper {\naccount {", "x }\n{",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		for _, newOne := range []func() caddyfile.Unmarshaler{
			func() caddyfile.Unmarshaler { return new(App) }, func() caddyfile.Unmarshaler { return new(Gateway) },
			func() caddyfile.Unmarshaler { return new(API) }, func() caddyfile.Unmarshaler { return new(BadgerStore) },
		} {
			tokens, err := caddyfile.Tokenize([]byte(text), "Caddyfile")
			if err != nil {
				return
			}
			m := newOne()
			if m.UnmarshalCaddyfile(caddyfile.NewDispenser(tokens)) != nil {
				continue
			}
			b, err := json.Marshal(m)
			if err != nil {
				t.Fatalf("%T does not marshal: %v", m, err)
			}
			again := newOne()
			if err := caddy.StrictUnmarshalJSON(b, again); err != nil {
				t.Fatalf("%T does not read back: %v in %s", m, err, b)
			}
			if b2, _ := json.Marshal(again); string(b2) != string(b) {
				t.Errorf("%T reads back as %s, want %s", m, b2, b)
			}
		}
	})
}

// Caddyfile.example says that it has every word: of the three blocks named limitkeeper, and of the blocks in them. An unknown word makes each
// parser list its words.
func TestExampleHasEveryWord(t *testing.T) {
	example, err := os.ReadFile("../Caddyfile.example")
	if err != nil {
		t.Fatal(err)
	}
	list := regexp.MustCompile(`its words are (\w+(?:, \w+)*), at `)
	for text, into := range map[string]caddyfile.Unmarshaler{
		"limitkeeper {\nunknown\n}":                    new(App),
		"limitkeeper {\naccount a {\nunknown\n}\n}":    new(App),
		"limitkeeper_api {\nunknown\n}":                new(API),
		"limitkeeper { \nunknown\n}":                   new(Gateway),
		"badger {\nunknown\n}":                         new(BadgerStore),
		"redis 127.0.0.1:6379 {\nunknown\n}":           new(RedisStore),
		"redis 127.0.0.1:6379 {\ntls {\nunknown\n}\n}": new(RedisStore),
	} {
		err := into.UnmarshalCaddyfile(caddyfile.NewTestDispenser(text))
		if err == nil || !list.MatchString(err.Error()) {
			t.Errorf("%q: got error %v, want one that lists the words", text, err)
			continue
		}
		for _, word := range strings.Split(list.FindStringSubmatch(err.Error())[1], ", ") {
			if !regexp.MustCompile(`(?m)^\s*(#\s*)*` + word + `\b`).Match(example) {
				t.Errorf("Caddyfile.example lacks the word %s of %q", word, text)
			}
		}
	}
}
