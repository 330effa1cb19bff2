package main

import "runtime/debug"

// version is the version of Limitkeeper that the build sets: -ldflags '-X main.version=v1.2.3'. A build without it takes the
// version from the build information.
var version string

// moduleVersions returns the versions of Limitkeeper and Badger in the binary. Without version the version of Limitkeeper is a
// tag or contains the commit, if the build has commit information. Otherwise it is "(devel)".
func moduleVersions() (ours, badger string) {
	ours, badger = "unknown", "unknown"
	if build, ok := debug.ReadBuildInfo(); ok {
		ours = build.Main.Version
		for _, dep := range build.Deps {
			if dep.Path == "github.com/dgraph-io/badger/v4" {
				badger = dep.Version
			}
		}
	}
	if version != "" {
		ours = version
	}
	return ours, badger
}
