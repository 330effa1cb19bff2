package main

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// othersMost is the share of the machine that other work may take before a report says
// so.
const othersMost = 0.05

// times is how the time of all processors together was spent up to a moment.
type times struct {
	all  time.Duration
	busy time.Duration // on anything, or taken by the host of the machine
	own  time.Duration // on this process and all that it has started
}

// parseTimes reads the text of /proc/stat.
func parseTimes(text string) (t times, err error) {
	line, _, _ := strings.Cut(text, "\n")
	fields := strings.Fields(line)
	if len(fields) < 9 || fields[0] != "cpu" {
		return t, fmt.Errorf("not the times of processors: %q", line)
	}
	for i, f := range fields[1:9] { // user, nice, system, idle, iowait, irq, softirq, steal
		n, err := strconv.ParseInt(f, 10, 64)
		if err != nil {
			return t, err
		}
		t.all += time.Duration(n) * tick
		if i != 3 && i != 4 {
			t.busy += time.Duration(n) * tick
		}
	}
	return t, nil
}

// timesNow returns the times up to now.
func timesNow() (t times, err error) {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return t, err
	}
	if t, err = parseTimes(string(text)); err != nil {
		return t, err
	}
	all, err := readStats("/proc")
	if err != nil {
		return t, err
	}
	t.own, err = treeCPU(all, []int{os.Getpid()})
	return t, err
}

// othersSince returns which share of the machine other work has taken since.
func (t times) othersSince(before times) float64 {
	all := t.all - before.all
	if all <= 0 {
		return 0
	}
	return max(0, float64((t.busy-before.busy)-(t.own-before.own))/float64(all))
}

// others is what a report says of the share of other work: nothing when it is small.
func others(share float64) string {
	if share < othersMost {
		return ""
	}
	return fmt.Sprintf("**Other work took %.0f %% of the machine meanwhile: these figures say little.**\n", share*100)
}

// since returns a function that returns which share of the machine other work has taken
// since, 0 when that cannot be told.
func since() func() float64 {
	before, err := timesNow()
	return func() float64 {
		now, failed := timesNow()
		if err != nil || failed != nil {
			return 0
		}
		return now.othersSince(before)
	}
}
