package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// report is what a part has measured.
type report struct {
	Part     string    `json:"part"`
	Title    string    `json:"title"`
	At       time.Time `json:"at"`
	Machine  machine   `json:"machine"`
	Rounds   int       `json:"rounds"`
	Seconds  float64   `json:"seconds"` // of one measurement
	Keys     int       `json:"keys"`
	Groups   []group   `json:"groups"`
	Others   float64   `json:"other_work"` // its share of the machine meanwhile
	programs []string
	since    func() float64
}

// group are measurements that are comparable: at the same number of connections.
type group struct {
	Name string `json:"name"`
	Rows []row  `json:"rows"`
}

// row is what was measured of one subject. All but the samples are medians of the
// rounds.
type row struct {
	Name    string     `json:"name"`
	Base    string     `json:"base,omitempty"`
	Rate    float64    `json:"requests_per_second"`
	Ratio   float64    `json:"ratio"` // to the base, in the same round
	Ratios  [2]float64 `json:"ratio_spread"`
	CPU     float64    `json:"cpu_us_per_request"`
	Added   float64    `json:"added_cpu_us_per_request,omitempty"` // to that of the base, for who does what the base does, and more
	Asking  float64    `json:"client_cpu_us_per_request,omitempty"`
	P50     float64    `json:"p50_ms,omitempty"`
	P99     float64    `json:"p99_ms,omitempty"`
	Samples []sample   `json:"samples"`
}

// newReport returns an empty report. Programs are those whose versions it tells.
func (l *lab) newReport(part, title string, programs ...string) *report {
	return &report{Part: part, Title: title, At: l.began.UTC().Truncate(time.Second), Machine: l.machine, Rounds: l.o.rounds,
		Seconds: l.o.duration.Seconds(), Keys: l.o.keys, programs: programs, since: since()}
}

// add adds what was measured in one group.
func (r *report) add(name string, all []series) {
	g := group{Name: name}
	for _, s := range all {
		g.Rows = append(g.Rows, newRow(s, find(all, s.subject.base)))
	}
	r.Groups = append(r.Groups, g)
}

// find returns the series of the subject with a name.
func find(all []series, name string) series {
	for _, s := range all {
		if s.subject.name == name {
			return s
		}
	}
	return series{}
}

// newRow sums up a series beside its base, round by round: what disturbs a round
// disturbs both.
func newRow(s, base series) row {
	rates, costs := each(s.samples, sample.rate), each(s.samples, sample.cost)
	r := row{Name: s.subject.name, Base: s.subject.base, Rate: median(rates), CPU: median(costs), Samples: s.samples,
		Asking: median(each(s.samples, sample.asking)),
		P50:    milliseconds(median(each(s.samples, func(m sample) time.Duration { return m.P50 }))),
		P99:    milliseconds(median(each(s.samples, func(m sample) time.Duration { return m.P99 })))}
	beside := ratios(rates, each(base.samples, sample.rate))
	r.Ratio = median(beside)
	r.Ratios[0], r.Ratios[1] = spread(beside)
	var added []float64
	for i, c := range each(base.samples, sample.cost) {
		added = append(added, costs[i]-c)
	}
	if s.subject.adds {
		r.Added = median(added)
	}
	return r
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1e3 }

// table returns the rows of a group as a table. Where the processor time of who asked is
// told it has a column, in place of what is added.
func (g group) table() table {
	t := table{head: []string{g.Name, "requests/s", "ratio", "least–most", "CPU µs/request", "added µs", "p50 ms", "p99 ms"}}
	asking := slices.ContainsFunc(g.Rows, func(r row) bool { return r.Asking != 0 })
	if asking {
		t.head[5] = "client µs"
	}
	for _, r := range g.Rows {
		ratio, most, added := fmt.Sprintf("%.2f", r.Ratio), fmt.Sprintf("%.2f–%.2f", r.Ratios[0], r.Ratios[1]), ""
		if r.Added != 0 {
			added = fmt.Sprintf("%+.1f", r.Added)
		}
		if asking {
			added = fmt.Sprintf("%.1f", r.Asking)
		}
		if r.Base == r.Name || r.Base == "" {
			ratio, most = "1", ""
		}
		t.rows = append(t.rows, []string{r.Name, thousands(r.Rate), ratio, most, fmt.Sprintf("%.1f", r.CPU), added, orDash(r.P50), orDash(r.P99)})
	}
	return t
}

// orDash writes a number of milliseconds, a dash for one that is not known.
func orDash(ms float64) string {
	if ms == 0 {
		return "–"
	}
	return fmt.Sprintf("%.2f", ms)
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

// String returns the report as it is printed: the tables and how they came about.
func (r *report) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s. Medians of %d rounds of %g s, %d keys.\n", r.Title, r.Rounds, r.Seconds, r.Keys)
	fmt.Fprintf(&b, "%s: %s; %s.\n", r.At.Format(time.DateOnly), r.Machine, r.Machine.versions(r.programs...))
	b.WriteString(others(r.Others))
	for _, g := range r.Groups {
		fmt.Fprintf(&b, "\n%s", g.table())
	}
	return b.String()
}

// write prints a report, and writes it as text, chart and figures into a directory.
func write(out io.Writer, dir, part string, report any, text string, c chart) error {
	if _, err := fmt.Fprintf(out, "\n%s\n", text); err != nil {
		return err
	}
	figures, err := json.MarshalIndent(report, "", "\t")
	if err != nil {
		return err
	}
	base := filepath.Join(dir, part)
	err = errors.Join(
		os.MkdirAll(dir, 0o755),
		os.WriteFile(base+".md", []byte(text), 0o644),
		os.WriteFile(base+".json", append(figures, '\n'), 0o644),
		os.WriteFile(base+".svg", []byte(c.String()), 0o644),
	)
	if err == nil {
		_, err = fmt.Fprintf(out, "Written: %s.md, %[1]s.svg, %[1]s.json\n", base)
	}
	return err
}

// write prints the report and writes it into a directory.
func (r *report) write(out io.Writer, dir string) error {
	r.Others = r.since()
	return write(out, dir, r.Part, r, r.String(), r.chart())
}

// chart returns the chart of the report: requests a second of every subject.
func (r *report) chart() chart {
	c := chart{title: r.Title, unit: "requests/s", note: r.Machine.String()}
	for _, g := range r.Groups {
		bars := barGroup{name: g.Name}
		for i, row := range g.Rows {
			bars.bars = append(bars.bars, bar{name: row.Name, value: row.Rate, label: thousands(row.Rate), colour: i})
		}
		c.groups = append(c.groups, bars)
	}
	return c
}
