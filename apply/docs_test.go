package apply_test

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/limitkeeper/limitkeeper/apply"
	"github.com/limitkeeper/limitkeeper/storage/memstore"
)

// The example of docs/apply.md prints the lines that the document shows.
func TestDocument(t *testing.T) {
	text, err := os.ReadFile("../docs/apply.md")
	if err != nil {
		t.Fatal(err)
	}
	block := func(language string) string {
		m := regexp.MustCompile("(?s)```" + language + "\n(.*?)```").FindSubmatch(text)
		if m == nil {
			t.Fatalf("the document has no block of %s", language)
		}
		return string(m[1])
	}
	b := newBench(t, memstore.New())
	file := block("yaml")
	_, shown, _ := strings.Cut(block("console"), "--dry-run\n")
	shown, _, _ = strings.Cut(shown, "$ ")
	lines := strings.Split(strings.TrimSpace(shown), "\n")
	last := len(lines) - 1
	b.apply(file, apply.Options{DryRun: true}, lines[:last]...)
	if want := fmt.Sprintf("changes: %d, none of them stored", last); lines[last] != want {
		t.Errorf("the document shows %q, want %q", lines[last], want)
	}
	b.apply(file, apply.Options{}, lines[:last]...)
	b.apply(file, apply.Options{})
	b.apply(strings.Replace(file, "1000", "2000", 1), apply.Options{}, strings.TrimSpace(block("diff")))
}
