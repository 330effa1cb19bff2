//go:build !linux

package table

// Claims reports whether [Claim] takes a lock on this system.
const Claims = false

// Claim does nothing on this system: badger.Open checks whether the directory is in use.
func Claim(string) (release func(), err error) { return func() {}, nil }

// Boot returns 0: this system does not identify the boot of the machine.
func Boot() uint64 { return 0 }
