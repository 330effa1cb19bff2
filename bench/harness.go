package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// work is the directory of the programs that bench/run has built, and of data.
const work = "bin/bench"

// harness starts the programs of a run. It owns a directory that it removes at the end.
type harness struct {
	o         *options
	dir       string
	processes []*process
	began     time.Time
}

// newHarness makes the directory.
func newHarness(o *options) (*harness, error) {
	dir, err := os.MkdirTemp(work, "run-")
	if err != nil {
		return nil, err
	}
	dir, err = filepath.Abs(dir)
	return &harness{o: o, dir: dir, began: time.Now()}, err
}

// program returns the path of a program that bench/run has built.
func (h *harness) program(name string) string { return filepath.Join(filepath.Dir(h.dir), name) }

// logf prints a line of progress with the seconds since the start.
func (h *harness) logf(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "%6.1fs  %s\n", time.Since(h.began).Seconds(), fmt.Sprintf(format, args...))
}

// start starts a program that runs until close.
func (h *harness) start(name string, env []string, argv ...string) (*process, error) {
	p, err := start(h.dir, name, env, argv...)
	if err == nil {
		h.processes = append(h.processes, p)
	}
	return p, err
}

// close stops the programs, the last one first, and removes the directory.
func (h *harness) close() error {
	for _, p := range slices.Backward(h.processes) {
		p.stop()
	}
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
