// Command limitkeeper is Caddy with usage limits: everything that Caddy does, and the
// modules and commands of package caddymodule.
package main

import (
	"math"
	"runtime"
	"runtime/debug"

	"github.com/KimMachineGun/automemlimit/memlimit"
	"github.com/caddyserver/caddy/v2"
	_ "github.com/caddyserver/caddy/v2/modules/standard"

	_ "github.com/limitkeeper/limitkeeper/caddymodule"
)

func main() {
	// The garbage collector runs whenever the heap has doubled, and that of a proxy with
	// little to remember is small: it would run all the time. This counts as heap, so that
	// as much garbage more may gather, and takes no memory itself: nobody writes to it. Under
	// a limit it counts too, and makes it run more often where that is small.
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

The commands account, check, clock, migrate, protect, rebuild, repair and store are Limitkeeper's.
The others are Caddy's own.`
	runAsLimitkeeper()
}

// memoryLimit returns how much memory there is to use, in bytes: what GOMEMLIMIT says, or the
// control group, of which Caddy takes nine tenths.
func memoryLimit() int64 {
	limit := debug.SetMemoryLimit(-1)
	if group, err := memlimit.FromCgroup(); err == nil && group < math.MaxInt64 {
		limit = min(limit, int64(group))
	}
	return limit
}
