package main

import (
	"cmp"
	"slices"
)

// number is what is measured.
type number interface{ ~int64 | ~float64 }

// median returns the median of values, 0 of none.
func median[T number](values []T) T {
	s := slices.Sorted(slices.Values(values))
	switch n := len(s); {
	case n == 0:
		return 0
	case n%2 == 0:
		return (s[n/2-1] + s[n/2]) / 2
	default:
		return s[n/2]
	}
}

// spread returns the least and the greatest of values.
func spread[T cmp.Ordered](values []T) (least, greatest T) {
	if len(values) == 0 {
		return least, greatest
	}
	return slices.Min(values), slices.Max(values)
}

// each returns what of says of every value.
func each[S any, T any](values []S, of func(S) T) []T {
	out := make([]T, len(values))
	for i, v := range values {
		out[i] = of(v)
	}
	return out
}

// ratios returns a[i] / b[i].
func ratios(a, b []float64) []float64 {
	var out []float64
	for i := range min(len(a), len(b)) {
		if b[i] != 0 {
			out = append(out, a[i]/b[i])
		}
	}
	return out
}
