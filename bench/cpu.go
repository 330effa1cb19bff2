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

// tick is the unit of CPU times in /proc: USER_HZ is 100 on every Linux that Go supports.
const tick = 10 * time.Millisecond

// stat has the fields of /proc/<pid>/stat that are used here.
type stat struct {
	parent int           // pid
	cpu    time.Duration // user and system time, with the children that have ended
}

// parseStat reads the text of /proc/<pid>/stat. The name of the program, in parentheses,
// may contain spaces and parentheses.
func parseStat(text []byte) (s stat, err error) {
	end := bytes.LastIndexByte(text, ')')
	fields := strings.Fields(string(text[end+1:]))
	if end < 0 || len(fields) < 15 {
		return s, fmt.Errorf("/proc/<pid>/stat: unexpected text %q", text)
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

// readStats returns the stat of every process, by pid. proc is /proc, or a copy in tests.
func readStats(proc string) (map[int]stat, error) {
	files, err := filepath.Glob(filepath.Join(proc, "[0-9]*", "stat"))
	if err != nil {
		return nil, err
	}
	all := map[int]stat{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil { // the process has ended since Glob
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

// treeCPU returns the CPU time of processes and all their descendants.
func treeCPU(all map[int]stat, roots []int) (sum time.Duration, err error) {
	for _, pid := range roots {
		if _, ok := all[pid]; !ok {
			return 0, fmt.Errorf("process %d ended during the measurement", pid)
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

// settleTimeout bounds the wait for work in the background.
const settleTimeout = 15 * time.Second

// cpuOf returns a function that waits until processes have nothing left to do, and then
// returns the CPU time of the processes and their descendants. A server that defers work until
// after its answers is charged for the work.
func cpuOf(processes []*process) func(context.Context) (time.Duration, error) {
	return func(ctx context.Context) (time.Duration, error) {
		return settle(ctx, func() (time.Duration, error) {
			all, err := readStats("/proc")
			if err != nil {
				return 0, err
			}
			return treeCPU(all, collect(processes, (*process).pid))
		})
	}
}

// settle calls used every 250 ms until the CPU time stops growing, and returns the last
// value. After settleTimeout it returns the value of a server that never rests.
func settle(ctx context.Context, used func() (time.Duration, error)) (time.Duration, error) {
	const step = 250 * time.Millisecond
	last, err := used()
	if err != nil {
		return 0, err
	}
	for range settleTimeout / step {
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
