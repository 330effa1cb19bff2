package store

import (
	"math/bits"
	"testing"
	"time"
)

// histogram counts durations in buckets with a width of at most 1/32 of their value. Its
// memory is constant.
type histogram struct {
	buckets [64 * 32]int64
	n       int64
}

// bucketOf returns the bucket of a number of nanoseconds, from its highest six bits and its
// magnitude.
func bucketOf(ns int64) int {
	if ns < 64 {
		return int(max(ns, 0))
	}
	shift := bits.Len64(uint64(ns)) - 6
	return shift*32 + int(ns>>shift)
}

// middleOf returns the middle of a bucket.
func middleOf(bucket int) time.Duration {
	if bucket < 64 {
		return time.Duration(bucket)
	}
	shift := bucket/32 - 1
	least := int64(bucket-shift*32) << shift
	return time.Duration(least + int64(1)<<shift/2)
}

func (h *histogram) add(d time.Duration) {
	h.buckets[bucketOf(int64(d))]++
	h.n++
}

// merge adds the counts of another histogram.
func (h *histogram) merge(o *histogram) {
	for i, n := range o.buckets {
		h.buckets[i] += n
	}
	h.n += o.n
}

// quantile returns the q-quantile, for q from 0 to 1.
func (h *histogram) quantile(q float64) time.Duration {
	left := int64(q*float64(h.n-1)) + 1
	for i, n := range h.buckets {
		if left -= n; left <= 0 && n > 0 {
			return middleOf(i)
		}
	}
	return 0
}

// A quantile is exact within the 3 % of a bucket.
func TestHistogram(t *testing.T) {
	var a, b histogram
	for i := range 1000 {
		a.add(time.Duration(i+1) * time.Microsecond)
		b.add(time.Duration(i+1001) * time.Microsecond)
	}
	a.merge(&b)
	for q, want := range map[float64]time.Duration{0: time.Microsecond, 0.5: time.Millisecond, 0.99: 1980 * time.Microsecond, 1: 2 * time.Millisecond} {
		if got := a.quantile(q); got < want*97/100 || got > want*103/100 {
			t.Errorf("quantile %v: got %v, want %v within 3 %%", q, got, want)
		}
	}
	if got := new(histogram).quantile(0.5); got != 0 {
		t.Errorf("of nothing: got %v, want 0", got)
	}
}

// Every duration has a bucket with a middle within 1/32 of the duration.
func TestBuckets(t *testing.T) {
	for ns := int64(1); ns < 1<<62; ns += ns/7 + 1 {
		if got := middleOf(bucketOf(ns)); int64(got) < ns-ns/32-1 || int64(got) > ns+ns/32+1 {
			t.Errorf("%d ns: got %d", ns, got)
		}
	}
	var h histogram
	h.add(-1)
	h.add(1<<63 - 1)
	if h.n != 2 {
		t.Errorf("got %d, want 2", h.n)
	}
}
