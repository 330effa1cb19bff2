//go:build !linux

package eventlog

import "os"

func syncData(f *os.File) error { return f.Sync() }

// Boot returns 0: on this system it is unknown when the machine was started.
func Boot() uint64 { return 0 }
