package core

import "math"

// CounterUsage is the usage of one counter in one window.
type CounterUsage struct {
	CounterID
	Seq int64 // of the key, 0 for the counter of a user
	Usage
}

// Percentage returns used in percent of limit with two decimals, 0 if limit is 0.
func Percentage(used, limit int64) float64 {
	if limit == 0 {
		return 0
	}
	return math.Round(float64(used)/float64(limit)*10000) / 100
}

// AddSaturating returns a + b, at most MaxLimit: JSON readers that use 64-bit floating point know no larger whole number exactly, and Redis
// counts no further. A larger a stays. Negative sums have no bound.
func AddSaturating(a, b int64) int64 {
	if a > MaxLimit-b {
		return max(a, MaxLimit)
	}
	return a + b
}

// AddSigned returns a + b, from -MaxLimit to MaxLimit.
func AddSigned(a, b int64) int64 { return min(max(-MaxLimit, a+b), MaxLimit) }
