//go:build !linux

package badgerstore

import (
	"errors"
	"math"
	"os"
)

// claims says whether claim does anything.
const claims = false

// claim does nothing here: badger finds out by itself whether the directory is in
// use.
func claim(string) (release func(), err error) { return func() {}, nil }

// diskSpace is not known here.
func diskSpace(string) (free, size uint64, err error) { return math.MaxUint64, math.MaxUint64, nil }

// fewInodes is not known here.
func fewInodes(string) bool { return false }

// allocate is not known here: free space is not known either.
func allocate(int, int64) error { return errors.ErrUnsupported }

func allocateAhead(int, int64, int64) error { return errors.ErrUnsupported }

func allocated(*os.File) int64 { return 0 }

func (r *reserve) serveMappings() (end func(), err error) { return func() {}, nil }

func (r *reserve) extendManifest() {}
