package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// Limits of a quiet machine. Beyond any of them, bench/run writes no results.
const (
	maxDeviation = 0.03 // of plain Caddy from itself
	minOfBest    = 0.5  // of the best known rate of plain Caddy on this kind of machine
	maxOtherWork = 0.05 // share of the processors that other programs take while a part runs
)

// noiseConnections is the number of connections of the noise check.
const noiseConnections = 32

// noise is the result of the noise check: two plain Caddys with the same configuration,
// measured in turn.
type noise struct {
	Deviation float64 `json:"deviation"`                 // median over the rounds of |a/b - 1|
	Plain     float64 `json:"plain_requests_per_second"` // median of all samples
	Best      float64 `json:"best_requests_per_second"`  // best known rate of plain Caddy; 0 for none
}

// newNoise compares the rates of two runs, round by round.
func newNoise(a, b []float64, best float64) noise {
	var deviations []float64
	for _, r := range ratios(a, b) {
		deviations = append(deviations, math.Abs(r-1))
	}
	return noise{Deviation: median(deviations), Plain: median(append(append([]float64(nil), a...), b...)), Best: best}
}

// refusal returns an error when the machine is too busy for results, nil when it is quiet.
func (n noise) refusal() error {
	switch {
	case n.Deviation > maxDeviation:
		return fmt.Errorf("the machine is too busy for results: plain Caddy differs from itself by %.1f %%, want at most %.0f %%. "+
			"Try again when nothing else runs, or use -print-only", n.Deviation*100, maxDeviation*100)
	case n.Plain < n.Best*minOfBest:
		return fmt.Errorf("the machine is too slow for results: plain Caddy makes %s requests/s, less than half of its best known rate, %s. "+
			"Try again when nothing else runs, or use -print-only", thousands(n.Plain), thousands(n.Best))
	}
	return nil
}

// String describes the noise for a report. It is empty without a noise check.
func (n noise) String() string {
	if n.Plain == 0 {
		return ""
	}
	return fmt.Sprintf("Noise: plain Caddy differs from itself by %.1f %%, at %s requests/s.\n", n.Deviation*100, thousands(n.Plain))
}

// requireQuiet runs the noise check and returns an error when the machine is too busy. It
// records the rate of plain Caddy when no better one is known.
func (h *harness) requireQuiet(ctx context.Context) error {
	defer h.stopAll()
	h.logf("noise check: two plain Caddys in turn")
	upstream, _, err := h.startUpstream(ctx, "upstream")
	if err != nil {
		return err
	}
	var pair []*subject
	for _, name := range []string{"plain Caddy, first", "plain Caddy, second"} {
		p, addr, err := h.startCaddySite(ctx, strings.ReplaceAll(name, " ", "-"), reverseProxy(upstream))
		if err != nil {
			return err
		}
		s, err := h.proxySubject(name, addr, h.fakeKeys(), p)
		if err != nil {
			return err
		}
		pair = append(pair, s)
	}
	all, err := h.measure(ctx, pair, noiseConnections)
	if err != nil {
		return err
	}
	best, err := readBest(bestFile)
	if err != nil {
		return err
	}
	kind := h.machine.kind()
	h.noise = newNoise(collect(all[0].samples, sample.rate), collect(all[1].samples, sample.rate), best[kind])
	h.logf("%s", strings.TrimSpace(h.noise.String()))
	if err := h.noise.refusal(); err != nil {
		return err
	}
	if h.noise.Plain <= best[kind] {
		return nil
	}
	best[kind] = math.Round(h.noise.Plain)
	return writeJSON(bestFile, best)
}

// bestFile holds the best known rates of plain Caddy in requests/s, by kind of machine.
var bestFile = filepath.Join(resultsDir, "best.json")

// readBest reads the best known rates. A missing file has none.
func readBest(path string) (map[string]float64, error) {
	best := map[string]float64{}
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return best, nil
	}
	if err != nil {
		return nil, err
	}
	return best, json.Unmarshal(text, &best)
}

// cpuTimes is how all processors together have spent their time since the system started.
type cpuTimes struct {
	total time.Duration
	busy  time.Duration // neither idle nor waiting for a disk; includes steal
	own   time.Duration // of this process and its descendants
}

// parseCPUTimes reads the text of /proc/stat. It leaves own at 0.
func parseCPUTimes(text string) (t cpuTimes, err error) {
	line, _, _ := strings.Cut(text, "\n")
	fields := strings.Fields(line)
	if len(fields) < 9 || fields[0] != "cpu" {
		return t, fmt.Errorf("/proc/stat: unexpected first line %q", line)
	}
	for i, f := range fields[1:9] { // user, nice, system, idle, iowait, irq, softirq, steal
		n, err := strconv.ParseInt(f, 10, 64)
		if err != nil {
			return t, err
		}
		t.total += time.Duration(n) * tick
		if i != 3 && i != 4 {
			t.busy += time.Duration(n) * tick
		}
	}
	return t, nil
}

// readCPUTimes returns the times up to now, zero when the system does not tell them.
func readCPUTimes() cpuTimes {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return cpuTimes{}
	}
	t, err := parseCPUTimes(string(text))
	if err != nil {
		return cpuTimes{}
	}
	all, err := readStats("/proc")
	if err != nil {
		return cpuTimes{}
	}
	t.own, _ = treeCPU(all, []int{os.Getpid()})
	return t
}

// otherWorkSince returns the share of the processors that other programs took since before.
func otherWorkSince(before cpuTimes) float64 { return readCPUTimes().otherWork(before) }

// otherWork returns the share of the processors that other programs took between two times.
func (t cpuTimes) otherWork(before cpuTimes) float64 {
	total := t.total - before.total
	if total <= 0 {
		return 0
	}
	return max(0, float64((t.busy-before.busy)-(t.own-before.own))/float64(total))
}

// otherWorkRefusal returns an error when other programs took too much of the processors.
func otherWorkRefusal(share float64) error {
	if share <= maxOtherWork {
		return nil
	}
	return fmt.Errorf("no results written: other programs took %.0f %% of the processors, want at most %.0f %%", share*100, maxOtherWork*100)
}
