// Package limitkeeper plugs usage limits into Caddy: importing it registers the
// modules and commands of package caddymodule, which is what xcaddy does with the
// path of this module.
package limitkeeper

import _ "github.com/limitkeeper/limitkeeper/caddymodule" // registers the modules
