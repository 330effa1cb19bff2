// Command limitkeeper is Caddy with usage limits: everything that Caddy does, and the
// modules and commands of package caddymodule.
package main

import (
	"github.com/caddyserver/caddy/v2"
	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	_ "github.com/caddyserver/caddy/v2/modules/standard"

	_ "github.com/limitkeeper/limitkeeper/caddymodule"
)

func main() {
	caddy.CustomBinaryName = "limitkeeper"
	caddy.CustomLongDescription = `Limitkeeper is usage limits inside the reverse proxy: a Caddy that issues API keys
under plans and counts every request against the plan of its key.

To see it work:            limitkeeper protect --demo
To protect an upstream:    limitkeeper protect --to localhost:9000
With a configuration file: limitkeeper run --config Caddyfile

The command account manages accounts on a running server. The others are Caddy's own.`
	caddycmd.Main()
}
