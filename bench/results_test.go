package main

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the results into the documents")

// README.md and docs/benchmarks.md show the measured results and nothing else. Neither an
// edited figure nor a table of an earlier run stays.
func TestDocsShowTheResults(t *testing.T) {
	for _, name := range docs {
		path := filepath.Join("..", name)
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		want, err := showResults("..", string(text))
		if err != nil {
			t.Fatal(err)
		}
		if want == string(text) {
			continue
		}
		if !*update {
			t.Errorf("%s shows other figures than bench/results; run go test ./bench -run Docs -update", name)
		} else if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(filepath.Join("..", docs[1]))
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range parts {
		if !strings.Contains(string(text), "<!-- bench/results/"+p.name+".md -->") {
			t.Errorf("%s does not show the part %s", docs[1], p.name)
		}
	}
}

// A section gets the current file, as often as a run writes it. Text around sections, and
// sections of files that no run has written yet, stay.
func TestShowResults(t *testing.T) {
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, resultsDir), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, resultsDir, "a.md"), []byte("| new $1 |\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	text := "before\n<!-- bench/results/a.md -->\n\nold\n\n<!-- end -->\nbetween\n<!-- bench/results/b.md -->\n<!-- end -->\nafter\n"
	want := "before\n<!-- bench/results/a.md -->\n\n| new $1 |\n\n<!-- end -->\nbetween\n<!-- bench/results/b.md -->\n<!-- end -->\nafter\n"
	for range 2 {
		got, err := showResults(dir, text)
		if err != nil || got != want {
			t.Errorf("got %q, %v, want %q", got, err, want)
		}
		text = got
	}
}

// The table of the README has eight rows, of the figures of two parts: the ratio of the
// gateway to plain Caddy and to Caddy with the same headers, and the ratio of /validate to
// a static answer with the same headers. Without all of the rows it is not written.
func TestSummary(t *testing.T) {
	dir := t.TempDir()
	rows := map[string][]row{}
	for i, s := range summaryRows {
		r := row{Name: s[2], Rate: float64(1000 * (i + 1)), CPU: float64(i) + 0.25}
		for j, base := range []string{plainCaddy, sameHeaders, staticRespond} {
			r.Comparisons = append(r.Comparisons, comparison{Base: base, Ratio: float64(i) + float64(j)/10})
		}
		rows[s[0]] = append(rows[s[0]], r)
	}
	write := func(part, name string, rows []row) {
		t.Helper()
		if err := writeJSON(filepath.Join(dir, part+".json"), &report{Groups: []group{{Name: "128 connections"}, {Name: name, Rows: rows}}}); err != nil {
			t.Fatal(err)
		}
	}
	write("proxy", "32 connections", rows["proxy"])
	write("validate", "HTTP, 32 connections", rows["validate"][:2])
	path := filepath.Join(dir, "readme.md")
	if err := writeSummary(dir); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); err == nil {
		t.Error("a row is missing: the table was written")
	}
	write("validate", "HTTP, 32 connections", rows["validate"])
	if err := writeSummary(dir); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	if len(lines) != 2+len(summaryRows) || len(summaryRows) > 8 {
		t.Errorf("got %d lines, want a head and at most 8 rows:\n%s", len(lines), text)
	}
	for line, cells := range map[int][]string{3: {gatewayName, "2,000", "1.2", "1.00", "1.10"}, 8: {validateName, "7,000", "6.2", "6.20"}} {
		for _, cell := range cells {
			if !strings.Contains(lines[line], cell) {
				t.Errorf("row %d: got %s, want %s", line-1, lines[line], cell)
			}
		}
	}
}
