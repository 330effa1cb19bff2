package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// resultsDir has the published results, relative to the repository.
var resultsDir = filepath.Join("bench", "results")

// docs are the files that show results, relative to the repository.
var docs = []string{"README.md", filepath.Join("docs", "benchmarks.md")}

// shownResult matches a section of a document that shows a file of results.
var shownResult = regexp.MustCompile(`(?s)<!-- (bench/results/\w+\.md) -->\n(.*?)<!-- end -->`)

// updateDocs writes readme.md, the table of the README, and puts every file of results
// into the sections of the documents that show the file.
func updateDocs(repository string) error {
	if err := writeSummary(filepath.Join(repository, resultsDir)); err != nil {
		return err
	}
	for _, name := range docs {
		path := filepath.Join(repository, name)
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		shown, err := showResults(repository, string(text))
		if err != nil {
			return err
		}
		if err := os.WriteFile(path, []byte(shown), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// showResults returns the text of a document with the current results. A section of a file
// that does not exist yet is empty.
func showResults(repository, text string) (string, error) {
	for _, section := range shownResult.FindAllStringSubmatch(text, -1) {
		result, err := os.ReadFile(filepath.Join(repository, filepath.FromSlash(section[1])))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return "", err
		}
		body := ""
		if len(result) > 0 {
			body = "\n" + string(result) + "\n"
		}
		text = strings.Replace(text, section[0], "<!-- "+section[1]+" -->\n"+body+"<!-- end -->", 1)
	}
	return text, nil
}

// summaryRows are the rows of the README's table: a part, the beginning of the name of a
// group, and the name of a row.
var summaryRows = [][3]string{
	{"proxy", "32 ", plainCaddy},
	{"proxy", "32 ", gatewayName + "durability process"},
	{"proxy", "32 ", gatewayName + "durability process, headers none"},
	{"proxy", "32 ", gatewayName + "durability power"},
	{"proxy", "32 ", forwardCaddy},
	{"validate", "HTTP,", staticRespond},
	{"validate", "HTTP,", validateName + "durability process"},
	{"validate", "HTTP,", ratelimitName},
}

// writeSummary writes the README's table from the figures of the parts. It writes nothing
// until the figures of proxy and validate are there.
func writeSummary(dir string) error {
	reports := map[string]*report{}
	for _, part := range []string{"proxy", "validate"} {
		text, err := os.ReadFile(filepath.Join(dir, part+".json"))
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		reports[part] = new(report)
		if err := json.Unmarshal(text, reports[part]); err != nil {
			return err
		}
	}
	t := table{head: []string{"32 connections", "requests/s", "CPU µs/request", "ratio to plain Caddy", "ratio to Caddy with the same headers"}}
	for _, want := range summaryRows {
		r, found := reports[want[0]].find(want[1], want[2])
		if !found {
			return nil
		}
		plain, _ := r.comparedWith(plainCaddy)
		same, _ := r.comparedWith(sameHeaders)
		if strings.HasPrefix(r.Name, validateName) {
			same, _ = r.comparedWith(staticRespond)
		}
		t.rows = append(t.rows, []string{r.Name, thousands(r.Rate), fmt.Sprintf("%.1f", r.CPU), plain, same})
	}
	return os.WriteFile(filepath.Join(dir, "readme.md"), []byte(t.String()), 0o644)
}

// find returns the row with a name, in the group whose name begins with a prefix.
func (r *report) find(groupPrefix, name string) (row, bool) {
	for _, g := range r.Groups {
		i := slices.IndexFunc(g.Rows, func(r row) bool { return r.Name == name })
		if i >= 0 && strings.HasPrefix(g.Name, groupPrefix) {
			return g.Rows[i], true
		}
	}
	return row{}, false
}

// writeJSON writes a value as indented JSON.
func writeJSON(path string, value any) error {
	text, err := json.MarshalIndent(value, "", "\t")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(text, '\n'), 0o644)
}
