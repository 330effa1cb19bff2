package caddymodule

import (
	"context"
	"strings"
	"testing"

	"github.com/limitkeeper/limitkeeper/core"
)

// A warning says that clients can spoof their address in the history and in the sign-in limits. It is
// logged once for each server with one of our handlers, at the first request of a trusted proxy.
func TestWarnsOfSpoofedAddresses(t *testing.T) {
	const proxies, warning = "trusted_proxies static private_ranges", "clients can spoof their address"
	for _, tc := range []struct {
		name, servers, site string
		want                int
	}{
		{"gateways and API", proxies, "limitkeeper /a\nlimitkeeper /b\nlimitkeeper_api", 1},
		{"gateway", proxies, "limitkeeper", 1},
		{"API", proxies, "limitkeeper_api", 1},
		{"strict", proxies + "\ntrusted_proxies_strict", "limitkeeper\nlimitkeeper_api", 0},
		{"no proxies", "", "limitkeeper\nlimitkeeper_api", 0},
		{"no handler of ours", proxies, "respond ok", 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := newServer(t)
			s.Must(s.Load(strings.Replace(s.Config("store memory", tc.site), proxies, tc.servers, 1)))
			for _, path := range []string{"/a", "/b", APIBase + "/users"} {
				s.Get(path)
				s.Get(path)
			}
			if got := strings.Count(s.Logged(), warning); got != tc.want {
				t.Errorf("warned %d times, want %d", got, tc.want)
			}
		})
	}
}

// With trusted_proxies_strict the history has the address that the trusted proxy saw. Without it the
// history has the address that the client sent, as the warning says.
func TestClientAddress(t *testing.T) {
	for word, want := range map[string]string{"": "192.0.2.66", "trusted_proxies_strict": "198.51.100.7"} {
		t.Run("with "+word, func(t *testing.T) {
			s := newServer(t)
			s.Must(s.Load(strings.Replace(s.Config("store memory", "limitkeeper\nrespond ok"), "private_ranges", "private_ranges\n"+word, 1)))
			ten := s.Tenant("default", 10)
			s.Get("/", "X-API-Key: "+ten.Secret, "X-Forwarded-For: 192.0.2.66, 198.51.100.7") // appended to the client's
			entries, _, err := s.Service().KeyHistory(context.Background(), ten.Account, ten.Key.ID, core.Page{Number: 1, Size: 1})
			s.Must(err)
			if len(entries) != 1 || entries[0].IP != want {
				t.Errorf("got %+v, want one from %s", entries, want)
			}
		})
	}
}
