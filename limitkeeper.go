// Package limitkeeper plugs usage limits into Caddy: an import registers the modules of package caddymodule and the commands
// of package command. xcaddy imports the path of this module.
package limitkeeper

import (
	_ "github.com/limitkeeper/limitkeeper/caddymodule"         // registers the modules
	_ "github.com/limitkeeper/limitkeeper/caddymodule/command" // registers the commands
)

// Version is the version of the sources, without the v of the tag. CHANGELOG.md has a section for each version.
const Version = "0.1.0"
