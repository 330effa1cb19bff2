package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// report has the results of a part.
type report struct {
	Part      string    `json:"part"`
	Title     string    `json:"title"`
	At        time.Time `json:"at"`
	Machine   machine   `json:"machine"`
	Noise     noise     `json:"noise"`
	OtherWork float64   `json:"other_work"` // share of the processors that other programs took
	Rounds    int       `json:"rounds"`
	Seconds   float64   `json:"seconds"` // of one measurement
	Keys      int       `json:"keys"`
	Groups    []group   `json:"groups"`

	programs []string // whose versions the report tells
	before   cpuTimes
}

// group has measurements that are comparable: the same protocol and number of connections.
type group struct {
	Name string `json:"name"`
	Rows []row  `json:"rows"`
}

// row has the medians of one subject, and every sample.
type row struct {
	Name        string       `json:"name"`
	Rate        float64      `json:"requests_per_second"`
	CPU         float64      `json:"cpu_us_per_request"`
	P50         float64      `json:"p50_ms"`
	P99         float64      `json:"p99_ms"`
	Comparisons []comparison `json:"comparisons,omitempty"`
	Samples     []sample     `json:"samples"`
}

// comparison compares a subject with a base, round by round: work of other programs in a
// round slows both.
type comparison struct {
	Base     string  `json:"base"`
	Ratio    float64 `json:"ratio"` // of the requests/s, median of the rounds
	Least    float64 `json:"least_ratio"`
	Greatest float64 `json:"greatest_ratio"`
	AddedCPU float64 `json:"added_cpu_us_per_request"` // median of the rounds
}

// newReport returns an empty report with the versions of programs.
func (h *harness) newReport(part, title string, programs ...string) *report {
	return &report{Part: part, Title: title, At: h.began.UTC().Truncate(time.Second), Machine: h.machine, Noise: h.noise,
		Rounds: h.o.rounds, Seconds: h.o.duration.Seconds(), Keys: h.o.keys, programs: programs, before: readCPUTimes()}
}

// measureGroup measures the subjects that -only selects, and adds them to a report.
func (h *harness) measureGroup(ctx context.Context, r *report, name string, subjects []*subject, connections int) error {
	wanted := slices.DeleteFunc(slices.Clone(subjects), func(s *subject) bool { return !h.o.wants(s.name) })
	all, err := h.measure(ctx, wanted, connections)
	if err == nil {
		r.add(name, all)
	}
	return err
}

// add adds a group. A comparison with a subject that was not measured is left out.
func (r *report) add(name string, all []series) {
	g := group{Name: name}
	for _, s := range all {
		row := newRow(s)
		for _, base := range s.subject.bases {
			if i := slices.IndexFunc(all, func(o series) bool { return o.subject.name == base }); i >= 0 {
				row.Comparisons = append(row.Comparisons, compare(s, all[i]))
			}
		}
		g.Rows = append(g.Rows, row)
	}
	r.Groups = append(r.Groups, g)
}

// newRow sums up a series.
func newRow(s series) row {
	return row{Name: s.subject.name, Samples: s.samples,
		Rate: median(collect(s.samples, sample.rate)), CPU: median(collect(s.samples, sample.cost)),
		P50: milliseconds(median(collect(s.samples, func(m sample) time.Duration { return m.P50 }))),
		P99: milliseconds(median(collect(s.samples, func(m sample) time.Duration { return m.P99 })))}
}

// compare compares a series with its base.
func compare(s, base series) comparison {
	c := comparison{Base: base.subject.name}
	all := ratios(collect(s.samples, sample.rate), collect(base.samples, sample.rate))
	c.Ratio = median(all)
	c.Least, c.Greatest = spread(all)
	var added []float64
	for i := range min(len(s.samples), len(base.samples)) {
		added = append(added, s.samples[i].cost()-base.samples[i].cost())
	}
	c.AddedCPU = median(added)
	return c
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1e3 }

// bases returns the names of the bases that rows are compared with.
func (g group) bases() (names []string) {
	for _, r := range g.Rows {
		for _, c := range r.Comparisons {
			if !slices.Contains(names, c.Base) {
				names = append(names, c.Base)
			}
		}
	}
	return names
}

// comparedWith returns the cells of a row for a base: the ratio and the added CPU time.
// They are empty without a comparison.
func (r row) comparedWith(base string) (ratio, added string) {
	for _, c := range r.Comparisons {
		if c.Base == base {
			return fmt.Sprintf("%.2f", c.Ratio), fmt.Sprintf("%+.1f", c.AddedCPU)
		}
	}
	return "", ""
}

// table returns the rows of a group. Each base has a column of ratios and one of added
// CPU time.
func (g group) table() table {
	t := table{head: []string{g.Name, "requests/s", "p50 ms", "p99 ms", "CPU µs/request"}}
	for _, base := range g.bases() {
		t.head = append(t.head, "ratio to "+base, "added µs")
	}
	for _, r := range g.Rows {
		cells := []string{r.Name, thousands(r.Rate), fmt.Sprintf("%.2f", r.P50), fmt.Sprintf("%.2f", r.P99), fmt.Sprintf("%.1f", r.CPU)}
		for _, base := range g.bases() {
			ratio, added := r.comparedWith(base)
			cells = append(cells, ratio, added)
		}
		t.rows = append(t.rows, cells)
	}
	return t
}

// String returns the report as Markdown.
func (r *report) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s. Medians of %d rounds of %g s, %d keys.\n", r.Title, r.Rounds, r.Seconds, r.Keys)
	fmt.Fprintf(&b, "%s: %s; %s.\n%s", r.At.Format(time.DateOnly), r.Machine, r.Machine.versions(r.programs...), r.Noise)
	for _, g := range r.Groups {
		fmt.Fprintf(&b, "\n%s", g.table())
	}
	return b.String()
}

// finish prints a report, and writes the results.
func (h *harness) finish(out io.Writer, r *report) error {
	r.OtherWork = otherWorkSince(r.before)
	return h.writeResults(out, r.Part, r.OtherWork, r, r.String())
}

// writeResults prints the text of a report, and writes text and figures into the directory
// of results. It writes nothing when other programs took too much of the processors.
func (h *harness) writeResults(out io.Writer, part string, otherWork float64, report any, text string) error {
	if _, err := fmt.Fprintf(out, "\n%s\n", text); err != nil || h.o.printOnly {
		return err
	}
	if err := otherWorkRefusal(otherWork); err != nil {
		return err
	}
	base := filepath.Join(h.o.out, part)
	err := errors.Join(os.MkdirAll(h.o.out, 0o755), os.WriteFile(base+".md", []byte(text), 0o644), writeJSON(base+".json", report))
	if err == nil {
		h.logf("written: %s.md, %[1]s.json", base)
	}
	return err
}

// table is text in rows and columns.
type table struct {
	head []string
	rows [][]string
}

// String returns the table as Markdown with aligned columns. The first column is text, the
// others are numbers.
func (t table) String() string {
	widths := make([]int, len(t.head))
	for _, row := range append([][]string{t.head}, t.rows...) {
		for i, cell := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell), 3)
		}
	}
	var b strings.Builder
	t.line(&b, t.head, widths)
	for i, w := range widths {
		rule := strings.Repeat("-", w+2)
		if i > 0 {
			rule = rule[1:] + ":"
		}
		b.WriteString("|" + rule)
	}
	b.WriteString("|\n")
	for _, row := range t.rows {
		t.line(&b, row, widths)
	}
	return b.String()
}

// line writes one row.
func (t table) line(b *strings.Builder, row []string, widths []int) {
	for i, w := range widths {
		pad := strings.Repeat(" ", w-utf8.RuneCountInString(row[i]))
		if i == 0 {
			b.WriteString("| " + row[i] + pad + " ")
		} else {
			b.WriteString("| " + pad + row[i] + " ")
		}
	}
	b.WriteString("|\n")
}

// thousands writes a number without its fraction, in groups of three digits.
func thousands(f float64) string {
	if f < 0 {
		return "-" + thousands(-f)
	}
	s := strconv.FormatInt(int64(f+0.5), 10)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// median returns the median of values, 0 for none.
func median[T ~int64 | ~float64](values []T) T {
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

// collect returns f of every value.
func collect[S any, T any](values []S, f func(S) T) []T {
	out := make([]T, len(values))
	for i, v := range values {
		out[i] = f(v)
	}
	return out
}

// ratios returns a[i] / b[i] of every round, without the rounds in which b is 0.
func ratios(a, b []float64) []float64 {
	var out []float64
	for i := range min(len(a), len(b)) {
		if b[i] != 0 {
			out = append(out, a[i]/b[i])
		}
	}
	return out
}
