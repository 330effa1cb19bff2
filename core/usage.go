package core

import (
	"cmp"
	"math"
	"slices"
)

// PlanTotals is the usage of the counters that a plan limits, in one window.
type PlanTotals struct {
	Used int64          // the sum, at most math.MaxInt64
	Top  []CounterUsage // the counters with the highest usage above 0, highest first; ties: users by id, then keys by Seq
}

// CounterUsage is the usage of one counter in one window.
type CounterUsage struct {
	CounterID
	Seq int64 // of the key, 0 for the counter of a user
	Usage
}

// compare orders counters by usage, highest first. Ties: users by id, then keys by Seq.
func (u *CounterUsage) compare(other *CounterUsage) int {
	return cmp.Or(cmp.Compare(other.Used, u.Used), cmp.Compare(u.Seq, other.Seq), cmp.Compare(u.UserID, other.UserID))
}

// Add adds a counter to the sum, and to Top if it is among the n with the highest usage. A counter
// without usage changes nothing.
func (d *PlanTotals) Add(n int, id CounterID, seq int64, u Usage) {
	if u.Used <= 0 {
		return
	}
	d.Used = AddSaturating(d.Used, u.Used)
	c := CounterUsage{CounterID: id, Seq: seq, Usage: u}
	i, _ := slices.BinarySearchFunc(d.Top, &c, func(has CounterUsage, c *CounterUsage) int { return has.compare(c) })
	if i >= n {
		return
	}
	d.Top = slices.Insert(d.Top, i, c)
	d.Top = d.Top[:min(len(d.Top), n)]
}

// Percentage returns used in percent of limit with two decimals, 0 if limit is 0.
func Percentage(used, limit int64) float64 {
	if limit == 0 {
		return 0
	}
	return math.Round(float64(used)/float64(limit)*10000) / 100
}

// AddSaturating returns a + b, at most MaxLimit: JSON readers that use 64-bit floating point know no larger whole number exactly, and Redis
// counts no further. Neither is negative. A larger a stays.
func AddSaturating(a, b int64) int64 {
	if a > MaxLimit-b {
		return max(a, MaxLimit)
	}
	return a + b
}
