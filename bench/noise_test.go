package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Results of a noisy or slowed machine never replace published ones: ratios shrink when
// other programs take the processors.
func TestNoiseRefusal(t *testing.T) {
	steady := []float64{10_000, 10_100, 9_900, 10_000, 10_050}
	for name, c := range map[string]struct {
		second []float64
		best   float64
		want   string // in the error; "" for none
	}{
		"quiet":                   {[]float64{10_100, 10_000, 10_000, 9_900, 10_050}, 12_000, ""},
		"2.9 % apart":             {[]float64{9_710, 9_807, 9_613, 9_710, 9_759}, 12_000, ""},
		"one outlier":             {[]float64{10_000, 10_100, 5_000, 10_000, 10_050}, 12_000, ""},
		"5 % slower":              {[]float64{9_500, 9_595, 9_405, 9_500, 9_550}, 12_000, "differs from itself by 5.3 %"},
		"5 % faster":              {[]float64{10_500, 10_600, 10_400, 10_500, 10_550}, 12_000, "differs from itself by 4.8 %"},
		"differences that cancel": {[]float64{11_000, 9_100, 10_890, 9_000, 10_050}, 12_000, "differs from itself by 9.1 %"},
		"exactly half":            {steady, 20_000, ""},
		"under half":              {steady, 20_001, "less than half of its best known rate, 20,001"},
		"new kind of machine":     {steady, 0, ""},
	} {
		err := newNoise(steady, c.second, c.best).refusal()
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: got %v, want an error with %q", name, err, c.want)
		}
	}
}

// The best known rate of one kind of machine says nothing about another kind.
func TestReadBest(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "best.json")
	if best, err := readBest(path); err != nil || len(best) != 0 {
		t.Errorf("missing file: got %v, %v, want none", best, err)
	}
	if err := writeJSON(path, map[string]float64{"2 cores of A": 15_000}); err != nil {
		t.Fatal(err)
	}
	best, err := readBest(path)
	if err != nil || best["2 cores of A"] != 15_000 || best["4 cores of A"] != 0 {
		t.Errorf("got %v, %v, want 15000 for 2 cores and nothing for 4", best, err)
	}
	if err := os.WriteFile(path, []byte("{"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := readBest(path); err == nil {
		t.Error("damaged file: got no error")
	}
}

// Other work is the time that processors were busy, without the programs of this run:
// idle time and waits for the disk do not count.
func TestOtherWork(t *testing.T) {
	before, err := parseCPUTimes("cpu  100 0 50 1000 10 0 5 0 0 0\ncpu0 1 2 3 4 5 6 7 8 9\n")
	if err != nil {
		t.Fatal(err)
	}
	if want := (cpuTimes{total: 1165 * tick, busy: 155 * tick}); before != want {
		t.Errorf("got %+v, want %+v", before, want)
	}
	after, err := parseCPUTimes("cpu  160 0 70 1080 30 0 15 10 0 0\n")
	if err != nil {
		t.Fatal(err)
	}
	after.own = 60 * tick // of 100 busy ticks, of 200 ticks in total
	if got := after.otherWork(before); got != 0.2 {
		t.Errorf("share: got %v, want 0.2", got)
	}
	if got := before.otherWork(before); got != 0 {
		t.Errorf("share of no time: got %v, want 0", got)
	}
	for _, text := range []string{"", "cpu 1 2 3", "cpu0 1 2 3 4 5 6 7 8 9", "cpu a 2 3 4 5 6 7 8"} {
		if got, err := parseCPUTimes(text); err == nil {
			t.Errorf("%q: got %+v, want an error", text, got)
		}
	}
}

// A machine that becomes busy after the noise check writes no results either.
func TestOtherWorkRefusal(t *testing.T) {
	for share, want := range map[float64]bool{0: false, 0.05: false, 0.051: true, 0.4: true} {
		if err := otherWorkRefusal(share); (err != nil) != want {
			t.Errorf("%v: got %v, want an error: %v", share, err, want)
		}
	}
}

func TestReadCPUTimes(t *testing.T) {
	if now := readCPUTimes(); now.total <= 0 || now.busy <= 0 || now.own > now.total {
		t.Errorf("got %+v, want times", now)
	}
}
