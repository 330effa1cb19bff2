package main

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// newSeries returns a series with the requests/s and CPU times per request of its rounds.
func newSeries(name string, rates []int64, cost time.Duration, bases ...string) series {
	s := series{subject: &subject{name: name, bases: bases}}
	for _, r := range rates {
		s.samples = append(s.samples, sample{Requests: r, Microseconds: 1e6, cpu: cost * time.Duration(r), P50: 1000, P99: 2500})
	}
	return s
}

// The table has medians of all rounds. A ratio is the median of the ratios of the rounds,
// not the ratio of the medians.
func TestTable(t *testing.T) {
	got := newTable("32 connections", []series{
		newSeries("plain", []int64{10_000, 20_000, 15_000}, 50*time.Microsecond),
		newSeries("headers", []int64{10_000, 16_000, 12_345}, 51*time.Microsecond, "plain"),
		newSeries("ours", []int64{9_500, 10_000, 12_345}, 53*time.Microsecond, "plain", "headers", "not measured"),
		newSeries("other", []int64{30_000, 60_000, 30_000}, 20*time.Microsecond, "plain"),
	})
	want := `| 32 connections | requests/s | p50 ms | p99 ms | CPU µs/request | ratio to plain | added µs | ratio to headers | added µs |
| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |
| plain | 15,000 | 1.00 | 2.50 | 50.0 |  |  |  |  |
| headers | 12,345 | 1.00 | 2.50 | 51.0 | 0.82 | +1.0 |  |  |
| ours | 10,000 | 1.00 | 2.50 | 53.0 | 0.82 | +3.0 | 0.95 | +2.0 |
| other | 30,000 | 1.00 | 2.50 | 20.0 | 3.00 | -30.0 |  |  |
`
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("table (-want +got):\n%s", diff)
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
