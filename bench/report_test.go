package main

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// samples returns a series of rates and of processor time for a request.
func samplesOf(name, base string, adds bool, rates []int64, cost time.Duration) series {
	s := series{subject: &subject{name: name, base: base, adds: adds}}
	for _, r := range rates {
		s.samples = append(s.samples, sample{Requests: r, Elapsed: time.Second, CPU: cost * time.Duration(r),
			P50: time.Millisecond, P99: 2500 * time.Microsecond})
	}
	return s
}

func testReport() *report {
	l := testLab()
	l.began = time.Date(2026, 3, 12, 12, 0, 0, 0, time.UTC)
	l.machine = machine{CPU: "A & B", Cores: 2, Memory: "4 GiB", Kernel: "6.1", Go: "1.26", Programs: map[string]string{"wrk": "4.1.0", "Redis": "7"}}
	r := l.newReport("proxy", "Requests <here>", "wrk", "nginx")
	r.add("32 connections", []series{
		samplesOf("plain", "plain", false, []int64{10000, 20000, 15000}, 50*time.Microsecond),
		samplesOf("ours", "plain", true, []int64{9500, 10000, 12345}, 53*time.Microsecond),
		samplesOf("other", "plain", false, []int64{30000, 60000, 30000}, 20*time.Microsecond),
	})
	return r
}

// The table has the medians of all rounds, and the ratio is the median of the rounds'
// ratios: not that of the medians.
func TestReport(t *testing.T) {
	want := `Requests <here>. Medians of 3 rounds of 1 s, 1 keys.
2026-03-12: 2 cores of A & B, 4 GiB of memory, Linux 6.1, Go 1.26; wrk 4.1.0.

| 32 connections | requests/s | ratio | least–most | CPU µs/request | added µs | p50 ms | p99 ms |
|----------------|-----------:|------:|-----------:|---------------:|---------:|-------:|-------:|
| plain          |     15,000 |     1 |            |           50.0 |          |   1.00 |   2.50 |
| ours           |     10,000 |  0.82 |  0.50–0.95 |           53.0 |     +3.0 |   1.00 |   2.50 |
| other          |     30,000 |  3.00 |  2.00–3.00 |           20.0 |          |   1.00 |   2.50 |
`
	if diff := cmp.Diff(want, testReport().String()); diff != "" {
		t.Errorf("report (-want +got):\n%s", diff)
	}
}

// What is written can be read by machines, and has every sample.
func TestReportIsWritten(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new")
	var out bytes.Buffer
	if err := testReport().write(&out, dir); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(dir, "proxy.json"))
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
	if text, err = os.ReadFile(filepath.Join(dir, "proxy.md")); err != nil || !strings.Contains(out.String(), string(text)) {
		t.Errorf("proxy.md is not what was printed (%v):\n%s", err, text)
	}
}

// The chart is well-formed, whatever is in names, with one bar for each row and no bar
// beyond the edge.
func TestChart(t *testing.T) {
	svg := testReport().chart().String()
	d, bars := xml.NewDecoder(strings.NewReader(svg)), 0
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatalf("%v in\n%s", err, svg)
		}
		if e, ok := token.(xml.StartElement); ok && e.Name.Local == "rect" {
			bars++
		}
	}
	if want := 3 + 1; bars != want { // and the background
		t.Errorf("got %d rectangles, want %d", bars, want)
	}
	for _, want := range []string{"Requests &lt;here&gt;", "A &amp; B", ">10,000<"} {
		if !strings.Contains(svg, want) {
			t.Errorf("the chart has no %q:\n%s", want, svg)
		}
	}
}

// A chart of nothing is a chart.
func TestChartOfNothing(t *testing.T) {
	svg := chart{groups: []barGroup{{name: "none", bars: []bar{{name: "zero"}}}}}.String()
	if err := xml.Unmarshal([]byte(svg), new(struct{})); err != nil || strings.Contains(svg, "NaN") {
		t.Errorf("got %v:\n%s", err, svg)
	}
}

func TestThousands(t *testing.T) {
	for f, want := range map[float64]string{0: "0", 999.4: "999", 999.6: "1,000", 1234567: "1,234,567", 123456: "123,456"} {
		if got := thousands(f); got != want {
			t.Errorf("thousands(%v): got %s, want %s", f, got, want)
		}
	}
}
