package service

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Every change that the service makes has a time: otherwise it would leave no entry in the audit log.
func TestEveryChangeIsAudited(t *testing.T) {
	files, err := filepath.Glob("*.go")
	if err != nil || len(files) == 0 {
		t.Fatalf("the files of the package: got %d, error %v", len(files), err)
	}
	change, acting := regexp.MustCompile(`store\.(Create|Update)\w*\(.*`), regexp.MustCompile(`^store\.\w+\((s\.acting\(ctx\)|core\.WithAuditTime\(ctx, )`)
	found := 0
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		for _, call := range change.FindAllString(string(text), -1) {
			if found++; !acting.MatchString(call) {
				t.Errorf("%s: got %s, want a context of s.acting", name, call)
			}
		}
	}
	if found < 8 {
		t.Errorf("calls that change the store: got %d, want all of them", found)
	}
}
