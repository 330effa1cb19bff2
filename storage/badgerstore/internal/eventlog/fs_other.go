//go:build !linux

package eventlog

import "os"

func syncData(f *os.File) error { return f.Sync() }

// Boot returns 0: this system does not identify the boot of the machine.
func Boot() uint64 { return 0 }
