//go:build !linux

package reserve

import (
	"errors"
	"math"
	"os"
)

// Space returns the largest values, because free space is unknown on this system.
func Space(string) (free, size uint64, err error) { return math.MaxUint64, math.MaxUint64, nil }

// fewInodes returns false, because inodes are unknown on this system.
func fewInodes(string) bool { return false }

// allocate returns an error: this system has no allocation of blocks.
func allocate(int, int64) error { return errors.ErrUnsupported }

func allocateAhead(int, int64, int64) error { return errors.ErrUnsupported }

func allocated(*os.File) int64 { return 0 }

func (r *Reserve) ServeMappings() (end func(), err error) { return func() {}, nil }

func (r *Reserve) ExtendManifest() {}
