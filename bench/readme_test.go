package main

import (
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the results into README.md")

// shown is a place in README.md where a file of results stands, as it was printed.
var shown = regexp.MustCompile(`(?s)<!-- (bench/results/\w+\.md) -->\n(.*?)<!-- end -->`)

// README.md shows what bench/run has printed, and nothing else: a table that is
// corrected by hand, or left from before, is no measurement.
func TestReadmeShowsTheResults(t *testing.T) {
	readme := filepath.Join("..", "README.md")
	text, err := os.ReadFile(readme)
	if err != nil {
		t.Fatal(err)
	}
	places := shown.FindAllStringSubmatch(string(text), -1)
	if len(places) != len(parts) {
		t.Errorf("README.md shows %d results, want one of each part: %d", len(places), len(parts))
	}
	updated := string(text)
	for _, p := range places {
		printed, err := os.ReadFile(filepath.Join("..", p[1]))
		if err != nil {
			t.Fatal(err)
		}
		if p[2] == "\n"+string(printed)+"\n" {
			continue
		}
		updated = strings.Replace(updated, p[0], "<!-- "+p[1]+" -->\n\n"+string(printed)+"\n<!-- end -->", 1)
		if !*update {
			t.Errorf("README.md shows something else than %s; go test ./bench -run Readme -update", p[1])
		}
	}
	if *update {
		if err := os.WriteFile(readme, []byte(updated), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}
