//go:build !linux

package table

// Claims reports whether [Claim] takes a lock on this system.
const Claims = false

// Claim does nothing on this system: badger.Open checks whether the directory is in use.
func Claim(string) (release func(), err error) { return func() {}, nil }
