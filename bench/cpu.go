package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// tick is the unit in which /proc counts processor time: every Linux that Go runs on
// shows it in hundredths of a second (USER_HZ).
const tick = 10 * time.Millisecond

// stat is what /proc/<pid>/stat says of a process.
type stat struct {
	parent int
	cpu    time.Duration // its own, and that of its children that have ended
}

// parseStat reads the text of /proc/<pid>/stat. The name of the program, in
// parentheses, may hold anything.
func parseStat(text []byte) (s stat, err error) {
	end := bytes.LastIndexByte(text, ')')
	fields := strings.Fields(string(text[end+1:]))
	if end < 0 || len(fields) < 15 {
		return s, fmt.Errorf("not the stat of a process: %q", text)
	}
	if s.parent, err = strconv.Atoi(fields[1]); err != nil {
		return s, err
	}
	for _, f := range fields[11:15] { // utime, stime, cutime, cstime
		n, err := strconv.ParseInt(f, 10, 64)
		if err != nil {
			return s, err
		}
		s.cpu += time.Duration(n) * tick
	}
	return s, nil
}

// readStats returns the stat of every process that is below proc, such as /proc.
func readStats(proc string) (map[int]stat, error) {
	files, err := filepath.Glob(filepath.Join(proc, "[0-9]*", "stat"))
	if err != nil {
		return nil, err
	}
	all := map[int]stat{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil { // it has ended meanwhile
			continue
		}
		s, err := parseStat(text)
		if err != nil {
			return nil, err
		}
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		all[pid] = s
	}
	return all, nil
}

// treeCPU returns the processor time of processes and of all that descend from them.
func treeCPU(all map[int]stat, roots []int) (sum time.Duration, err error) {
	for _, pid := range roots {
		if _, ok := all[pid]; !ok {
			return 0, fmt.Errorf("process %d has ended while it was measured", pid)
		}
	}
	for pid, s := range all {
		for p := pid; p > 0; p = all[p].parent {
			if slices.Contains(roots, p) {
				sum += s.cpu
				break
			}
		}
	}
	return sum, nil
}

// patience is how long a program may work on after the load has ended.
const patience = 15 * time.Second

// cpuOf returns a function that waits until processes have nothing left to do, such as
// work in the background, and returns the processor time that they and their
// descendants have used by then.
func cpuOf(roots []int) func(context.Context) (time.Duration, error) {
	return func(ctx context.Context) (time.Duration, error) {
		return settle(ctx, func() (time.Duration, error) {
			all, err := readStats("/proc")
			if err != nil {
				return 0, err
			}
			return treeCPU(all, roots)
		})
	}
}

// settle calls used until it grows no more, and returns what it returned last. After
// patience it takes what there is.
func settle(ctx context.Context, used func() (time.Duration, error)) (time.Duration, error) {
	const step = 250 * time.Millisecond
	last, err := used()
	if err != nil {
		return 0, err
	}
	for range patience / step {
		select {
		case <-ctx.Done():
			return 0, ctx.Err()
		case <-time.After(step):
		}
		now, err := used()
		if err != nil {
			return 0, err
		}
		if now-last <= tick {
			return now, nil
		}
		last = now
	}
	return last, nil
}
