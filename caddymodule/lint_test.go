package caddymodule

import (
	"strings"
	"testing"

	"github.com/limitkeeper/limitkeeper/adminapi/dashboard"
)

// What a config says and probably does not mean is a warning when it is loaded, once. Of trusted proxies the first request tells.
func TestWarnings(t *testing.T) {
	const guards, twice, plain, declared = "the gateway also guards the REST API", "limitkeeper runs twice", "answer over HTTPS only", "not that of this gateway"
	const open, behind, nothing = "limitkeeper guards some paths only", "answers every request: put limitkeeper", "limitkeeper_api serves nothing here"
	const misspelt = "the placeholder of a cost is misspelt"
	acme := "store memory\naccount acme {\nkey lk_0123456789abcdefghijklmnopqrs\n}"
	for name, tt := range map[string]struct{ options, site, want string }{
		"a gateway and the API in one site":        {"store memory", "limitkeeper\nlimitkeeper_api", guards},
		"a gateway and the API in handle blocks":   {"store memory", "handle /functions/* {\nlimitkeeper_api\n}\nhandle {\nlimitkeeper\n}", ""},
		"a gateway that leaves the API out":        {"store memory", "@site not path /functions/*\nlimitkeeper @site\nlimitkeeper_api", ""},
		"gateways of two accounts in a route":      {"store memory", "route {\nlimitkeeper\nlimitkeeper {\naccount b\n}\nrespond ok\n}", twice},
		"two gateways in handle blocks":            {"store memory", "handle /a/* {\nlimitkeeper\n}\nhandle {\nlimitkeeper\n}", ""},
		"a gateway of some paths":                  {"store memory", "limitkeeper /v1/*\nreverse_proxy localhost:1", open},
		"two gateways of some paths":               {"store memory", "@a path /v1/*\nlimitkeeper @a\nlimitkeeper /v2/*\nroute {\nheader X y\nreverse_proxy localhost:1\n}", open},
		"a gateway that leaves some paths out":     {"store memory", "@keys not path /docs/*\nlimitkeeper @keys\nreverse_proxy localhost:1", ""},
		"a gateway and its proxy of some paths":    {"store memory", "handle /v1/* {\nlimitkeeper\nreverse_proxy localhost:1\n}\nhandle {\nreverse_proxy localhost:2\n}", ""},
		"a gateway in a block of some paths":       {"store memory", "handle /v1/* {\nlimitkeeper\n}\nreverse_proxy localhost:1", open},
		"an open proxy beside a complete block":    {"store memory", "handle /v1/* {\nlimitkeeper\nrespond ok\n}\nreverse_proxy localhost:1", ""},
		"a gateway behind its proxy":               {"store memory", "route {\nreverse_proxy localhost:1\nlimitkeeper\n}", behind},
		"a gateway behind forward_auth":            {"store memory", "route {\nforward_auth localhost:1 {\nuri /\n}\nlimitkeeper\n}", ""},
		"gateways of different paths":              {"store memory", "limitkeeper /v1/*\nhandle /v2/* {\nlimitkeeper\n}", ""},
		"an API behind a block with a gateway":     {"store memory", "handle {\nlimitkeeper\nreverse_proxy localhost:1\n}\nlimitkeeper_api", guards},
		"an API at another path":                   {"store memory", "limitkeeper_api /api/*", nothing},
		"an API in a block of another path":        {"store memory", "handle /api/* {\nlimitkeeper_api\n}", nothing},
		"an API whose prefix is removed":           {"store memory", "handle_path /api/* {\nlimitkeeper_api\n}", ""},
		"an API without its dashboard":             {"store memory", "limitkeeper_api /functions/*", ""},
		"a misspelt placeholder of a cost":         {"store memory", "map {path} {price} {\ndefault 2\n}\nlimitkeeper {\ncost {prise}\n}", misspelt},
		"a placeholder of a map":                   {"store memory", "map {path} {price} {\ndefault 2\n}\nlimitkeeper {\ncost {price}\n}", ""},
		"a placeholder of a map in front":          {"store memory", "map {path} {price} {\ndefault 2\n}\nhandle {\nlimitkeeper {\ncost {price}\n}\n}", ""},
		"a misspelt placeholder of Caddy":          {"store memory", "limitkeeper {\ncost tokens {http.request.hader.X-Cost}\n}", misspelt},
		"placeholders of Caddy and of a module":    {"store memory", "limitkeeper {\ncost tokens {header.X-Cost}\ncost a {http.geoip.cost}\ncost b {env.COST}\n}", ""},
		"a gateway of another account":             {acme, "limitkeeper", declared},
		"a gateway of a declared account":          {acme, "limitkeeper {\naccount acme\n}", ""},
		"an API at an address with http":           {"store memory", "limitkeeper_api", plain},
		"an API behind a proxy that ends TLS, and": {"store memory", "limitkeeper_api\nheader X-Proxied yes", ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := newServer(t)
			config := s.Config(tt.options, tt.site)
			if tt.want == plain { // the other servers trust a proxy
				config = strings.Replace(config, "trusted_proxies static private_ranges", "", 1)
			}
			s.Must(s.Load(config))
			for range 2 {
				s.Get(APIBase + "/users")
			}
			log := s.Logged()
			for _, warning := range []string{guards, twice, plain, declared, open, behind, nothing, misspelt} {
				if got, want := strings.Count(log, warning), strings.Count(tt.want, warning); got != want {
					t.Errorf("the warning %q stands in the log %d times, want %d", warning, got, want)
				}
			}
		})
	}
}

// A config in which each request passes two gateways of one account is refused, and one in which no request does is not.
func TestTwoGateways(t *testing.T) {
	for site, refused := range map[string]bool{
		"route {\nlimitkeeper\nlimitkeeper\nrespond ok\n}":                                       true,
		"limitkeeper\nhandle /a/* {\nlimitkeeper\n}":                                             true,
		"limitkeeper\nlimitkeeper /v1/*":                                                         true,
		"limitkeeper {\nkeep_key\n}\nroute {\nlimitkeeper {\naccount default\n}\n}":              true,
		"handle /a/* {\nlimitkeeper\n}\nhandle {\nlimitkeeper\n}":                                false,
		"limitkeeper /v1/*\nlimitkeeper /v2/*":                                                   false,
		"route /v1/* {\nlimitkeeper\nrespond ok\n}\nroute {\nlimitkeeper\nrespond ok\n}":         false,
		"route {\nlimitkeeper\nlimitkeeper {\naccount b\nkey header X-Partner\n}\nrespond ok\n}": false,
		"route {\nlimitkeeper\nlimitkeeper {\nkey header x-api-key\n}\nrespond ok\n}":            true,
		"route {\nlimitkeeper\nlimitkeeper {\nkey header X-Partner\n}\nrespond ok\n}":            false,
	} {
		s := newServer(t)
		err := s.Load(s.Config("store memory", site))
		if got := err != nil && strings.Contains(err.Error(), "limitkeeper stands twice"); got != refused {
			t.Errorf("%q: got the error %v, want it to be refused: %t", site, err, refused)
		}
	}
}

// An owner's key, or the key of a user, in a wrong place is refused with the right place.
func TestOwnerKeyElsewhere(t *testing.T) {
	s, up := newServer(t), newRecorder(t, nil)
	s.Start("store memory", "limitkeeper_api\n@site not path /functions/* "+dashboard.Base+"*\nroute @site {\nlimitkeeper\n"+up.proxy()+"\n}")
	ten := s.Tenant("default", 10)
	for _, tt := range []struct{ path, field, want string }{
		{APIBase + "/users", "X-API-Key: " + ten.Owner, "in the field Authorization, after the word Bearer"},
		{APIBase + "/users", "Authorization: " + ten.Owner, "in the field Authorization, after the word Bearer"},
		{APIBase + "/users", "Authorization: Bearer " + ten.Secret, "this looks like the key of a user; the REST API takes an owner's key"},
		{"/x", "X-API-Key: " + ten.Owner, ": this is an owner's key"},
	} {
		got := s.Get(tt.path, tt.field, "X-Forwarded-Proto: https")
		if got.StatusCode != 401 || !strings.Contains(got.Text, tt.want) || strings.Contains(got.Text, ten.Owner) || strings.Contains(got.Text, ten.Secret) {
			t.Errorf("%s with %.14s…: got %d %s, want %s", tt.path, tt.field, got.StatusCode, got.Text, tt.want)
		}
	}
}
