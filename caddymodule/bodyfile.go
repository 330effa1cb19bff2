package caddymodule

import (
	"fmt"
	"hash/maphash"
	"net/http"
	"os"
	"sync"

	"github.com/limitkeeper/limitkeeper/core"
)

// The bounds of the files of bodies, in bytes.
const (
	maxCallerFiles = 128 << 20 // of a caller
	maxFiles       = 2 << 30   // of the process
	fileStep       = 1 << 20   // the bounds are asked for so many bytes at once
)

// errManyBodies refuses a body while other bodies of the caller take the room of files.
var errManyBodies = bodyError{core.BadRequest("body", fmt.Sprintf("Long bodies of more than %d MiB are on their way: send this one when others have ended", maxCallerFiles>>20))}

// bodyFile is a temporary file with the end of a long body. It has no name where the system allows that, and is gone with the process.
type bodyFile struct {
	file     *os.File
	caller   uint64
	size     int64
	reserved int64
}

// newBodyFile makes a file for a body of a caller.
func newBodyFile(caller string) (*bodyFile, error) {
	f, err := os.CreateTemp("", "limitkeeper-body-*")
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errBodyFile, err)
	}
	_ = os.Remove(f.Name()) // fails on Windows: see close
	return &bodyFile{file: f, caller: maphash.String(callerSeed, caller)}, nil
}

// Write implements [io.Writer].
func (f *bodyFile) Write(p []byte) (int, error) {
	for f.size+int64(len(p)) > f.reserved {
		if err := bodyFiles.grow(f.caller, fileStep); err != nil {
			return 0, err
		}
		f.reserved += fileStep
	}
	n, err := f.file.Write(p)
	if f.size += int64(n); err != nil {
		err = fmt.Errorf("%w: %w", errBodyFile, err)
	}
	return n, err
}

// ReadAt implements [io.ReaderAt].
func (f *bodyFile) ReadAt(p []byte, at int64) (int, error) { return f.file.ReadAt(p, at) }

// close removes the file.
func (f *bodyFile) close() {
	_ = f.file.Close()
	_ = os.Remove(f.file.Name())
	_ = bodyFiles.grow(f.caller, -f.reserved)
}

// fileBounds counts the bytes of files, by the hash of a caller.
type fileBounds struct {
	mu       sync.Mutex
	byCaller map[uint64]int64
	total    int64
}

var (
	bodyFiles  = fileBounds{byCaller: map[uint64]int64{}}
	callerSeed = maphash.MakeSeed()
)

// grow adds bytes of a caller, or removes them. It adds nothing beyond the bounds.
func (b *fileBounds) grow(caller uint64, by int64) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case by > 0 && b.byCaller[caller]+by > maxCallerFiles:
		return errManyBodies
	case by > 0 && b.total+by > maxFiles:
		return core.Unavailable(fmt.Errorf("the files of the bodies of requests take %d MiB", b.total>>20))
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
