package caddymodule

import (
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/limitkeeper/limitkeeper/core"
)

// gatewayAccounts are the names of the accounts of the gateways in a config.
type gatewayAccounts struct {
	mu    sync.Mutex
	names map[string]bool
}

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

// Directives describes the directives of the running config that name one of the accounts. Other nodes may have other configs.
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

// Renamed gives the metrics the new name of an account.
func (o *OpenStore) Renamed(a *core.Account) { o.live.names.add(a) }
