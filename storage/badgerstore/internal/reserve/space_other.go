//go:build !linux

package reserve

import (
	"errors"
	"math"
	"os"
)

// Space is not known here.
func Space(string) (free, size uint64, err error) { return math.MaxUint64, math.MaxUint64, nil }

// fewInodes is not known here.
func fewInodes(string) bool { return false }

// allocate is not known here: free space is not known either.
func allocate(int, int64) error { return errors.ErrUnsupported }

func allocateAhead(int, int64, int64) error { return errors.ErrUnsupported }

func allocated(*os.File) int64 { return 0 }

func (r *Reserve) ServeMappings() (end func(), err error) { return func() {}, nil }

func (r *Reserve) ExtendManifest() {}
