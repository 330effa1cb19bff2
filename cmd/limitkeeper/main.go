// Command limitkeeper is Caddy with the standard modules, and the modules and commands of
// Limitkeeper.
package main

import (
	"math"
	"runtime"
	"runtime/debug"

	"github.com/KimMachineGun/automemlimit/memlimit"
	"github.com/caddyserver/caddy/v2"
	_ "github.com/caddyserver/caddy/v2/modules/standard"

	_ "github.com/limitkeeper/limitkeeper"
)

func main() {
	// The garbage collector runs whenever the heap has doubled. The heap of a proxy is small, so the
	// collector would run very often. ballast enlarges the heap and so reduces the collections. It uses
	// no physical memory, because nothing writes to it. Under a small memory limit the ballast would
	// cause more collections.
	var ballast []byte
	if memoryLimit() > 512<<20 {
		ballast = make([]byte, 32<<20)
	}
	defer runtime.KeepAlive(ballast)

	caddy.CustomBinaryName = "limitkeeper"
	caddy.CustomLongDescription = `Limitkeeper enforces API quotas in your reverse proxy: a Caddy that issues API keys
under plans and counts every request against the plan of its key.

To see it work:            limitkeeper protect --demo
To protect an upstream:    limitkeeper protect --to localhost:9000
With a configuration file: limitkeeper run --config Caddyfile

The commands account, apply, backup, check, clock, export, health, import, migrate,
protect, repair, restore, store and usage are Limitkeeper's.
The others are Caddy's own.`
	runAsLimitkeeper()
}

// memoryLimit returns the memory limit in bytes: GOMEMLIMIT, or 90 % of the limit of the control group.
func memoryLimit() int64 {
	limit := debug.SetMemoryLimit(-1)
	if group, err := memlimit.FromCgroup(); err == nil && group < math.MaxInt64 {
		limit = min(limit, int64(group))
	}
	return limit
}
