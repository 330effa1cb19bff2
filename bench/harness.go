package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"
)

// harness starts the programs of a run. It owns a directory that it removes at the end.
type harness struct {
	o         *options
	dir       string
	binary    string // path of the limitkeeper binary
	machine   machine
	noise     noise // zero with -print-only
	processes []*process
	out       io.Writer // for progress
	began     time.Time
}

// newHarness builds the limitkeeper binary and makes the directory.
func newHarness(ctx context.Context, o *options, out io.Writer) (*harness, error) {
	work, err := filepath.Abs(o.work)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(work, 0o755); err != nil {
		return nil, err
	}
	h := &harness{o: o, out: out, began: time.Now(), binary: filepath.Join(work, "limitkeeper")}
	h.logf("building cmd/limitkeeper")
	if _, err := output(ctx, nil, "go", "build", "-ldflags", "-s -w", "-o", h.binary, "./cmd/limitkeeper"); err != nil {
		return nil, err
	}
	if h.dir, err = os.MkdirTemp(work, "run-"); err != nil {
		return nil, err
	}
	if inMemory(h.dir) {
		h.logf("%s is in memory: writes look cheaper than on a disk; see -work", work)
	}
	h.machine = thisMachine(ctx, h.binary)
	return h, nil
}

// inMemory reports whether a directory is on tmpfs or ramfs.
func inMemory(dir string) bool {
	const tmpfs, ramfs = 0x01021994, 0x858458f6
	var s syscall.Statfs_t
	return syscall.Statfs(dir, &s) == nil && (s.Type == tmpfs || s.Type == ramfs)
}

// logf prints a line of progress with the seconds since the start.
func (h *harness) logf(format string, args ...any) {
	fmt.Fprintf(h.out, "%6.1fs  %s\n", time.Since(h.began).Seconds(), fmt.Sprintf(format, args...))
}

// start starts a program that runs until stopAll.
func (h *harness) start(name string, env []string, argv ...string) (*process, error) {
	p, err := start(h.dir, name, env, argv...)
	if err == nil {
		h.processes = append(h.processes, p)
	}
	return p, err
}

// stopAll stops the programs, the last one first.
func (h *harness) stopAll() {
	for _, p := range slices.Backward(h.processes) {
		p.stop()
	}
	h.processes = nil
}

// close stops the programs and removes the directory.
func (h *harness) close() error {
	h.stopAll()
	return os.RemoveAll(h.dir)
}

// file writes a file into the directory and returns its path.
func (h *harness) file(name, text string) (string, error) {
	path := filepath.Join(h.dir, name)
	return path, errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644))
}

// startRedis starts a Redis server that writes nothing to disk, and returns its Unix
// socket, as a path relative to the directory of the harness.
func (h *harness) startRedis(ctx context.Context, name string) (*process, string, error) {
	socket := filepath.Join(name, "socket")
	if err := os.MkdirAll(filepath.Join(h.dir, name), 0o755); err != nil {
		return nil, "", err
	}
	p, err := h.start(name, nil, "redis-server", "--port", "0", "--dir", name, "--unixsocket", "socket", "--save", "", "--appendonly", "no")
	if err != nil {
		return nil, "", err
	}
	return p, socket, p.ready(ctx, accepts("unix", filepath.Join(h.dir, socket)))
}
