package caddymodule

import (
	"fmt"
	"hash/maphash"
	"net/http"
	"os"
	"sync"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/internal/aiusage"
)

// The bounds of the bodies that gateways have read, in memory and in files, in bytes.
const (
	maxCallerBodies = 128 << 20           // of a user
	maxBodies       = 2 << 30             // of the process
	bodyStep        = aiusage.MaxBuffered // a file reserves space in such steps
)

// errManyBodies refuses a body while other bodies of the user take the space.
var errManyBodies = bodyError{core.BadRequest("body", fmt.Sprintf("Your requests that are running have %d MiB of bodies: send this one when one of them has ended", maxCallerBodies>>20))}

// bodyFile is a temporary file with the end of a long body, and the space that is reserved for the whole body. The file has no name where the system
// allows that, and is gone with the process.
type bodyFile struct {
	file     *os.File // nil for a body that is in memory
	caller   uint64
	memory   int64 // reserved for the begin of the body
	reserved int64 // for the file
	size     int64 // of the file
	once     sync.Once
}

// newBodyFile reserves the memory of a body of a caller.
func newBodyFile(caller string, memory int64) (*bodyFile, error) {
	f := &bodyFile{caller: maphash.String(callerSeed, caller), memory: memory}
	return f, bodySpace.grow(f.caller, memory)
}

// Write implements [io.Writer]. The first call makes the file.
func (f *bodyFile) Write(p []byte) (n int, err error) {
	if f.file == nil {
		if f.file, err = os.CreateTemp("", "limitkeeper-body-*"); err != nil {
			return 0, fmt.Errorf("%w: %w", errBodyFile, err)
		}
		_ = os.Remove(f.file.Name()) // fails on Windows: see close
	}
	for f.size+int64(len(p)) > f.reserved {
		if err := bodySpace.grow(f.caller, bodyStep); err != nil {
			return 0, err
		}
		f.reserved += bodyStep
	}
	n, err = f.file.Write(p)
	if f.size += int64(n); err != nil {
		err = fmt.Errorf("%w: %w", errBodyFile, err)
	}
	return n, err
}

// ReadAt implements [io.ReaderAt].
func (f *bodyFile) ReadAt(p []byte, at int64) (int, error) { return f.file.ReadAt(p, at) }

// close removes the file.
func (f *bodyFile) close() {
	f.once.Do(func() {
		if f.file != nil {
			_ = f.file.Close()
			_ = os.Remove(f.file.Name())
		}
		_ = bodySpace.grow(f.caller, -f.memory-f.reserved)
	})
}

// bodyBounds counts the bytes of bodies, by the hash of a caller.
type bodyBounds struct {
	mu       sync.Mutex
	byCaller map[uint64]int64
	total    int64
}

var (
	bodySpace  = bodyBounds{byCaller: map[uint64]int64{}}
	callerSeed = maphash.MakeSeed()
)

// grow adds bytes of a caller, or removes them. It adds nothing beyond the bounds.
func (b *bodyBounds) grow(caller uint64, by int64) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case by > 0 && b.byCaller[caller]+by > maxCallerBodies:
		return errManyBodies
	case by > 0 && b.total+by > maxBodies:
		return core.Unavailable(fmt.Errorf("the bodies of requests have %d MiB, the most that they may have", maxBodies>>20))
	}
	b.total += by
	if b.byCaller[caller] += by; b.byCaller[caller] == 0 {
		delete(b.byCaller, caller)
	}
	return nil
}

// status returns the status of the answer to a request whose body is refused.
func (e bodyError) status() int {
	switch e {
	case errBodyTooLarge:
		return http.StatusRequestEntityTooLarge
	case errManyBodies:
		return http.StatusTooManyRequests
	}
	return http.StatusBadRequest
}
