package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"
)

// statLine returns the text of /proc/<pid>/stat of a process with the given times in ticks.
func statLine(name string, group, user, system, childUser, childSystem int) string {
	return fmt.Sprintf("42 (%s) S 1 %d 42 0 -1 4194560 1 2 3 4 %d %d %d %d 20 0 8 0 100 1 2\n",
		name, group, user, system, childUser, childSystem)
}

// The CPU time of a server has user time, system time and the times of ended children. A
// program name with spaces or parentheses does not shift the fields.
func TestParseStat(t *testing.T) {
	for _, name := range []string{"nginx", "a b", "x) S 1 (y"} {
		group, cpu, err := parseStat([]byte(statLine(name, 7, 100, 20, 3, 1)))
		if err != nil || group != 7 || cpu != 1240*time.Millisecond {
			t.Errorf("%s: got %d, %v, %v, want 7 and 1.24s", name, group, cpu, err)
		}
	}
	for _, text := range []string{"", "1 (x) S", "no", "1 (x) S 1 p 1 1 1 1 1 1 1 1 1 1 1 1 1"} {
		if group, cpu, err := parseStat([]byte(text)); err == nil {
			t.Errorf("%q: got %d, %v, want an error", text, group, cpu)
		}
	}
}

// The CPU time of a server includes the workers in its process group, and no other process.
func TestGroupCPU(t *testing.T) {
	proc := t.TempDir()
	for pid, line := range map[string]string{
		"10": statLine("master", 10, 1, 0, 0, 0),
		"11": statLine("worker", 10, 10, 0, 0, 0),
		"20": statLine("other", 1, 1000, 0, 0, 0),
		"30": statLine("second", 30, 10000, 0, 0, 0),
	} {
		if err := os.Mkdir(filepath.Join(proc, pid), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(proc, pid, "stat"), []byte(line), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		groups []int
		want   time.Duration
	}{{[]int{10}, 11 * tick}, {[]int{10, 30}, 10011 * tick}} {
		if got, err := groupCPU(proc, c.groups); err != nil || got != c.want {
			t.Errorf("%v: got %v, %v, want %v", c.groups, got, err, c.want)
		}
	}
	if _, err := groupCPU(proc, []int{10, 99}); err == nil {
		t.Error("a process that has ended: got no error")
	}
}

// Work that a server defers until after its answers is charged to the requests.
func TestSettleWaitsForWorkInTheBackground(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		use := []time.Duration{5, 20, 90, 91}
		at := 0
		got, err := settle(t.Context(), func() (time.Duration, error) {
			at++
			return use[min(at, len(use))-1] * tick, nil
		})
		if want := 91 * tick; err != nil || got != want {
			t.Errorf("settle: got %v, %v, want %v", got, err, want)
		}
	})
}

// settle ends for a server that never rests, with an error when the server has ended, and
// when the context is cancelled.
func TestSettleEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var used time.Duration
		if _, err := settle(t.Context(), func() (time.Duration, error) { used += time.Second; return used, nil }); err != nil {
			t.Errorf("a server that never rests: %v", err)
		}
		gone := errors.New("gone")
		if _, err := settle(t.Context(), func() (time.Duration, error) { return 0, gone }); !errors.Is(err, gone) {
			t.Errorf("a server that has ended: got %v, want %v", err, gone)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := settle(ctx, func() (time.Duration, error) { return 0, nil }); !errors.Is(err, context.Canceled) {
			t.Errorf("interrupted: got %v, want %v", err, context.Canceled)
		}
	})
}
