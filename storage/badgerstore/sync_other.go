//go:build !linux

package badgerstore

import "os"

func syncData(f *os.File) error { return f.Sync() }
