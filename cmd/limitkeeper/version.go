package main

import "runtime/debug"

// moduleVersions returns the versions of Limitkeeper and Badger in the binary. For a build in a git checkout
// the version of Limitkeeper is a tag or contains the commit. Without commit information it is "(devel)".
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
