package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// lab is where things are measured: a directory that is removed afterwards, and the
// programs that run meanwhile.
type lab struct {
	o         *options
	dir       string
	limit     string // the path of our program
	machine   machine
	processes []*process
	out       io.Writer // for progress
	began     time.Time

	// apart has every program that is started run on one core, and wrk on another one.
	apart bool
}

// The cores of programs and of wrk when they are apart.
const (
	coreOfPrograms = 0
	coreOfLoad     = 1
)

// onCore returns the command that runs a program on one core.
func onCore(core int, argv []string) []string {
	return append([]string{"taskset", "--cpu-list", strconv.Itoa(core)}, argv...)
}

// newLab builds our program and makes the directory.
func newLab(ctx context.Context, o *options, out io.Writer) (*lab, error) {
	work, err := filepath.Abs(o.work)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(work, 0o755); err != nil {
		return nil, err
	}
	l := &lab{o: o, out: out, began: time.Now(), limit: filepath.Join(work, "limitkeeper")}
	l.say("building cmd/limitkeeper")
	if _, err := output(ctx, "", nil, "go", "build", "-ldflags", "-s -w", "-o", l.limit, "./cmd/limitkeeper"); err != nil {
		return nil, err
	}
	if l.dir, err = os.MkdirTemp(work, "run-"); err != nil {
		return nil, err
	}
	if inMemory(l.dir) {
		l.say("%s is in memory, no disk: what is durable looks cheaper than it is; see -work", work)
	}
	l.machine = thisMachine(ctx, l.limit)
	return l, nil
}

// inMemory reports whether a directory is on a file system without a disk.
func inMemory(dir string) bool {
	const tmpfs, ramfs = 0x01021994, 0x858458f6
	var s syscall.Statfs_t
	return syscall.Statfs(dir, &s) == nil && (s.Type == tmpfs || s.Type == ramfs)
}

// say shows progress.
func (l *lab) say(format string, args ...any) {
	fmt.Fprintf(l.out, "%6.1fs  %s\n", time.Since(l.began).Seconds(), fmt.Sprintf(format, args...))
}

// start starts a program that runs until stopAll.
func (l *lab) start(name string, env []string, argv ...string) (*process, error) {
	if l.apart {
		argv = onCore(coreOfPrograms, argv)
	}
	p, err := start(l.dir, name, env, argv...)
	if err == nil {
		l.processes = append(l.processes, p)
	}
	return p, err
}

// stopAll ends the programs, the last one first.
func (l *lab) stopAll() {
	for _, p := range slices.Backward(l.processes) {
		p.stop()
	}
	l.processes = nil
}

// close ends what runs and removes what is left.
func (l *lab) close() error {
	l.stopAll()
	return os.RemoveAll(l.dir)
}

// file writes a file into the directory and returns its path.
func (l *lab) file(name, text string) (string, error) {
	path := filepath.Join(l.dir, name)
	return path, errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644))
}

// wants reports whether something with the name is to be measured.
func (o *options) wants(name string) bool {
	if len(o.only) == 0 {
		return true
	}
	return slices.ContainsFunc(o.only, func(w string) bool { return strings.Contains(name, w) })
}

// wantsAny reports whether something with one of the names is to be measured.
func (l *lab) wantsAny(names ...string) bool { return slices.ContainsFunc(names, l.o.wants) }
