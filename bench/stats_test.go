package main

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// The figures of a table are medians: of an even number, the middle between the two in
// the middle, and the order in which they were measured is left alone.
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
	if got := median([]time.Duration{3, 1, 2}); got != 2 {
		t.Errorf("median of durations: got %v, want 2", got)
	}
}

// A ratio is between measurements of the same round, and none is infinite.
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
