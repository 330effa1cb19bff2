package main

import "runtime/debug"

// moduleVersions returns the versions of Limitkeeper and of Badger that the binary is built
// from. Built in a checkout, that of Limitkeeper is a tag or names the commit; without
// information on the commit it is "(devel)".
func moduleVersions() (ours, badger string) {
	ours, badger = "unknown", "unknown"
	build, ok := debug.ReadBuildInfo()
	if !ok {
		return ours, badger
	}
	for _, dep := range build.Deps {
		if dep.Path == "github.com/dgraph-io/badger/v4" {
			badger = dep.Version
		}
	}
	return build.Main.Version, badger
}
