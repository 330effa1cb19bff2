package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// newSeries returns a series with the requests/s and CPU times per request of its rounds.
func newSeries(name string, rates []int64, cost time.Duration, bases ...string) series {
	s := series{subject: &subject{name: name, bases: bases}}
	for _, r := range rates {
		s.samples = append(s.samples, sample{Requests: r, Elapsed: time.Second, CPU: cost * time.Duration(r),
			P50: time.Millisecond, P99: 2500 * time.Microsecond})
	}
	return s
}

func testReport() *report {
	h := testHarness()
	h.began = time.Date(2026, 3, 12, 12, 0, 0, 0, time.UTC)
	h.machine = machine{CPU: "A & B", Cores: 2, Memory: "4 GiB", Kernel: "6.1", Go: "1.26", Programs: map[string]string{"wrk": "4.1.0", "Redis": "7"}}
	h.noise = noise{Deviation: 0.0123, Plain: 15_000, Best: 16_000}
	r := h.newReport("proxy", "Requests", "wrk", "nginx")
	r.add("32 connections", []series{
		newSeries("plain", []int64{10_000, 20_000, 15_000}, 50*time.Microsecond),
		newSeries("headers", []int64{10_000, 16_000, 12_345}, 51*time.Microsecond, "plain"),
		newSeries("ours", []int64{9_500, 10_000, 12_345}, 53*time.Microsecond, "plain", "headers", "not measured"),
		newSeries("other", []int64{30_000, 60_000, 30_000}, 20*time.Microsecond, "plain"),
	})
	return r
}

// The table has medians of all rounds. A ratio is the median of the ratios of the rounds,
// not the ratio of the medians. The report tells the noise.
func TestReport(t *testing.T) {
	want := `Requests. Medians of 3 rounds of 1 s, 1 keys.
2026-03-12: 2 cores of A & B, 4 GiB of memory, Linux 6.1, Go 1.26; wrk 4.1.0.
Noise: plain Caddy differs from itself by 1.2 %, at 15,000 requests/s.

| 32 connections | requests/s | p50 ms | p99 ms | CPU µs/request | ratio to plain | added µs | ratio to headers | added µs |
|----------------|-----------:|-------:|-------:|---------------:|---------------:|---------:|-----------------:|---------:|
| plain          |     15,000 |   1.00 |   2.50 |           50.0 |                |          |                  |          |
| headers        |     12,345 |   1.00 |   2.50 |           51.0 |           0.82 |     +1.0 |                  |          |
| ours           |     10,000 |   1.00 |   2.50 |           53.0 |           0.82 |     +3.0 |             0.95 |     +2.0 |
| other          |     30,000 |   1.00 |   2.50 |           20.0 |           3.00 |    -30.0 |                  |          |
`
	if diff := cmp.Diff(want, testReport().String()); diff != "" {
		t.Errorf("report (-want +got):\n%s", diff)
	}
}

// The results are the printed text, and JSON with every sample. A busy machine prints, and
// leaves the results of an earlier run alone.
func TestResultsAreWritten(t *testing.T) {
	h, r := testHarness(), testReport()
	h.o.out = filepath.Join(t.TempDir(), "new")
	var out bytes.Buffer
	if err := h.writeResults(&out, r.Part, 0.2, r, r.String()); err == nil || !strings.Contains(err.Error(), "other programs took 20 %") {
		t.Errorf("busy machine: got %v, want an error with the share", err)
	}
	if _, err := os.Stat(h.o.out); err == nil {
		t.Error("busy machine: results were written")
	}
	out.Reset()
	if err := h.writeResults(&out, r.Part, 0.01, r, r.String()); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(h.o.out, "proxy.json"))
	if err != nil {
		t.Fatal(err)
	}
	var got report
	if err := json.Unmarshal(text, &got); err != nil {
		t.Fatal(err)
	}
	if n := len(got.Groups[0].Rows[1].Samples); n != 3 || got.Machine.Kernel != "6.1" {
		t.Errorf("proxy.json: got %d samples and %+v, want 3 and the machine", n, got.Machine)
	}
	if text, err = os.ReadFile(filepath.Join(h.o.out, "proxy.md")); err != nil || !strings.Contains(out.String(), string(text)) {
		t.Errorf("proxy.md is not the printed text (%v):\n%s", err, text)
	}
}

// A median of an even number of values is the mean of the middle two. The order of the
// values stays.
func TestMedian(t *testing.T) {
	for _, c := range []struct {
		values []float64
		want   float64
	}{
		{nil, 0}, {[]float64{7}, 7}, {[]float64{9, 1}, 5}, {[]float64{9, 1, 2}, 2}, {[]float64{4, 100, 1, 2}, 3},
	} {
		before := append([]float64(nil), c.values...)
		if got := median(c.values); got != c.want {
			t.Errorf("median(%v): got %v, want %v", c.values, got, c.want)
		}
		if diff := cmp.Diff(before, c.values); diff != "" {
			t.Errorf("median changed its values: %s", diff)
		}
	}
}

// A ratio compares measurements of the same round, and is never infinite.
func TestRatios(t *testing.T) {
	got := ratios([]float64{1, 2, 3, 4}, []float64{2, 0, 4})
	if diff := cmp.Diff([]float64{0.5, 0.75}, got); diff != "" {
		t.Errorf("ratios (-want +got):\n%s", diff)
	}
}

func TestSpread(t *testing.T) {
	if least, greatest := spread([]float64{2, 9, 1}); least != 1 || greatest != 9 {
		t.Errorf("spread: got %v to %v, want 1 to 9", least, greatest)
	}
	if least, greatest := spread[float64](nil); least != 0 || greatest != 0 {
		t.Errorf("spread of nothing: got %v to %v, want 0", least, greatest)
	}
}
