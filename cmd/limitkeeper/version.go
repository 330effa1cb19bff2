package main

import (
	"runtime/debug"

	"github.com/limitkeeper/limitkeeper"
)

// version is the version that the Makefile sets from tools/version: -ldflags '-X main.version=v1.2.3'.
var version string

// moduleVersions returns the versions of Limitkeeper and Badger in the binary. A build without the Makefile has the version of
// the sources, with -dev behind it unless the Go command has downloaded a release.
func moduleVersions() (ours, badger string) {
	ours, badger = version, "unknown"
	build, ok := debug.ReadBuildInfo()
	if ours == "" {
		ours = "v" + limitkeeper.Version
		if !ok || build.Main.Version != ours {
			ours += "-dev"
		}
	}
	if ok {
		for _, dep := range build.Deps {
			if dep.Path == "github.com/dgraph-io/badger/v4" {
				badger = dep.Version
			}
		}
	}
	return ours, badger
}
