package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
)

// measureGroup measures the subjects that -only selects, and prints their table. They are comparable: they have the same
// protocol and number of connections.
func (h *harness) measureGroup(ctx context.Context, name string, subjects []*subject, connections int) error {
	wanted := slices.DeleteFunc(slices.Clone(subjects), func(s *subject) bool { return !h.o.wants(s.name) })
	all, err := h.measure(ctx, wanted, connections)
	if err == nil {
		_, err = fmt.Fprintf(os.Stdout, "\n%s", newTable(name, all))
	}
	return err
}

// newTable returns the medians of series as Markdown. Each base that was measured has a column of ratios and one of added CPU time.
func newTable(name string, all []series) string {
	byName := map[string]series{}
	var bases []string
	for _, s := range all {
		byName[s.subject.name] = s
	}
	for _, s := range all {
		for _, base := range s.subject.bases {
			if byName[base].subject != nil && !slices.Contains(bases, base) {
				bases = append(bases, base)
			}
		}
	}
	head := []string{name, "requests/s", "p50 ms", "p99 ms", "CPU µs/request"}
	for _, base := range bases {
		head = append(head, "ratio to "+base, "added µs")
	}
	rows := [][]string{head, append([]string{"---"}, slices.Repeat([]string{"---:"}, len(head)-1)...)}
	for _, s := range all {
		row := []string{s.subject.name, thousands(median(collect(s.samples, sample.rate))),
			fmt.Sprintf("%.2f", median(collect(s.samples, func(m sample) float64 { return float64(m.P50) / 1e3 }))),
			fmt.Sprintf("%.2f", median(collect(s.samples, func(m sample) float64 { return float64(m.P99) / 1e3 }))),
			fmt.Sprintf("%.1f", median(collect(s.samples, sample.cost)))}
		for _, base := range bases {
			ratio, added := "", ""
			if slices.Contains(s.subject.bases, base) {
				ratio, added = compare(s.samples, byName[base].samples)
			}
			row = append(row, ratio, added)
		}
		rows = append(rows, row)
	}
	var b strings.Builder
	for _, row := range rows {
		fmt.Fprintf(&b, "| %s |\n", strings.Join(row, " | "))
	}
	return b.String()
}

// compare returns the median of the ratios of the requests/s, and of the added CPU time for each request. It compares the samples of each
// round: work of other programs in a round slows both.
func compare(samples, base []sample) (ratio, added string) {
	var rates, costs []float64
	for i, s := range samples {
		rates, costs = append(rates, s.rate()/base[i].rate()), append(costs, s.cost()-base[i].cost())
	}
	return fmt.Sprintf("%.2f", median(rates)), fmt.Sprintf("%+.1f", median(costs))
}

// thousands writes a number without its fraction, in groups of three digits.
func thousands(f float64) string {
	s := strconv.FormatInt(int64(f+0.5), 10)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// median returns the median of values, 0 for none.
func median(values []float64) float64 {
	s := slices.Sorted(slices.Values(values))
	if len(s) == 0 {
		return 0
	}
	return (s[(len(s)-1)/2] + s[len(s)/2]) / 2
}

// collect returns f of every value.
func collect[S any, T any](values []S, f func(S) T) []T {
	out := make([]T, len(values))
	for i, v := range values {
		out[i] = f(v)
	}
	return out
}
