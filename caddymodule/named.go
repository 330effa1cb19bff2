package caddymodule

import (
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/limitkeeper/limitkeeper/core"
)

// gatewayAccounts are the names of accounts in the gateways of a config.
type gatewayAccounts struct {
	mu    sync.Mutex
	names map[string]bool
}

// add adds the name of the account of a gateway.
func (g *gatewayAccounts) add(name string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.names == nil {
		g.names = map[string]bool{}
	}
	g.names[name] = true
}

// sorted returns the names, sorted.
func (g *gatewayAccounts) sorted() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Sorted(maps.Keys(g.names))
}

// Directives returns the directives of the running config that name one of the accounts, as a Caddyfile has them. It knows the config of this
// process only.
func (o *OpenStore) Directives(names ...string) (list []string) {
	for _, acc := range o.app.Accounts {
		if slices.Contains(names, acc.Name) {
			list = append(list, fmt.Sprintf("account %q of the global option limitkeeper", acc.Name))
		}
	}
	for _, name := range o.app.gatewayAccounts.sorted() {
		if slices.Contains(names, name) {
			list = append(list, fmt.Sprintf("account %q of the directive limitkeeper", name))
		}
	}
	return list
}

// Renamed tells the metrics the name of an account.
func (o *OpenStore) Renamed(a *core.Account) { o.live.names.add(a) }
