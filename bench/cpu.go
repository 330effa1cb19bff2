package main

import (
	"bytes"
	"context"
	"errors"
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

// parseStat returns the process group, and the user and system time with the children that have ended, from the text of
// /proc/<pid>/stat. The name of the program, in parentheses, may contain spaces and parentheses.
func parseStat(text []byte) (group int, cpu time.Duration, err error) {
	end := bytes.LastIndexByte(text, ')')
	fields := strings.Fields(string(text[end+1:]))
	if end < 0 || len(fields) < 15 {
		return 0, 0, fmt.Errorf("/proc/<pid>/stat: unexpected text %q", text)
	}
	group, err = strconv.Atoi(fields[2])
	for _, f := range fields[11:15] { // utime, stime, cutime, cstime
		n, failed := strconv.Atoi(f)
		cpu, err = cpu+time.Duration(n)*tick, errors.Join(err, failed)
	}
	return group, cpu, err
}

// groupCPU returns the CPU time of all processes in some process groups. proc is /proc, or a copy in tests.
func groupCPU(proc string, groups []int) (sum time.Duration, err error) {
	files, err := filepath.Glob(filepath.Join(proc, "[0-9]*", "stat"))
	if err != nil {
		return 0, err
	}
	found := map[int]bool{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil { // the process has ended since Glob
			continue
		}
		group, cpu, err := parseStat(text)
		if err != nil {
			return 0, err
		}
		if slices.Contains(groups, group) {
			found[group] = true
			sum += cpu
		}
	}
	if len(found) < len(groups) {
		return 0, fmt.Errorf("of the process groups %v only %v run", groups, found)
	}
	return sum, nil
}

// cpuOf returns a function that waits until processes have nothing left to do, and then
// returns the CPU time of the processes and their descendants. A server that defers work until
// after its answers is charged for the work.
func cpuOf(processes ...*process) func(context.Context) (time.Duration, error) {
	groups := collect(processes, func(p *process) int { return p.cmd.Process.Pid })
	return func(ctx context.Context) (time.Duration, error) {
		return settle(ctx, func() (time.Duration, error) { return groupCPU("/proc", groups) })
	}
}

// settle calls used every 250 ms until the CPU time stops growing, and returns the last
// value. After 15 s it returns the value of a server that never rests.
func settle(ctx context.Context, used func() (time.Duration, error)) (time.Duration, error) {
	const step, timeout = 250 * time.Millisecond, 15 * time.Second
	last, err := used()
	if err != nil {
		return 0, err
	}
	for range timeout / step {
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
