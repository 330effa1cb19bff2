package limitkeeper

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

// The version stands in one place: the changelog has a section for it, and the binaries and archives of make have it.
func TestVersion(t *testing.T) {
	changes, err := os.ReadFile("CHANGELOG.md")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(changes), "\n## "+Version) {
		t.Errorf("CHANGELOG.md has no section %s", Version)
	}
	built, err := exec.Command("tools/version").Output()
	if err != nil || !strings.HasPrefix(string(built), "v"+Version) {
		t.Errorf("tools/version: got %q, %v, want v%s", built, err, Version)
	}
}
