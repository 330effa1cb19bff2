package e2e

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// fence matches a block of code in a document, with its language.
var fence = regexp.MustCompile("(?ms)^ *```(\\w+)\n(.*?)^ *```$")

// What the documents show to be copied is valid: whole Caddyfiles and snippets of a
// site, and JSON configs.
func TestDocumentsAreValid(t *testing.T) {
	checked := 0
	for _, file := range []string{"README.md", "docs/api.md", "docs/caddyfile.md", "docs/recipes.md", "docs/security.md", "docs/distributed.md"} {
		for _, m := range fence.FindAllStringSubmatch(readDocument(t, filepath.Join(root, file)), -1) {
			language, code := m[1], m[2]
			if language != "caddyfile" && !(language == "json" && strings.Contains(code, `"apps"`)) {
				continue
			}
			if strings.Contains(code, "<") { // a synopsis
				continue
			}
			checked++
			if err := validConfig(t, language, code); err != "" {
				t.Errorf("%s: this is not valid:\n%s\n%s", file, code, err)
			}
		}
	}
	if checked < 5 {
		t.Errorf("looked at %d configs in the documents, want all", checked)
	}
}

// validConfig returns what the command validate says against a config, or "".
func validConfig(t *testing.T, language, code string) string {
	t.Helper()
	dir := t.TempDir()
	name := "Caddyfile"
	if language == "json" {
		name = "config.json"
		if !json.Valid([]byte(code)) {
			return "not JSON"
		}
	} else if !strings.HasPrefix(code, "{") && !strings.Contains(code, ".com {") { // a snippet of a site
		code = ":8080 {\n" + code + "}\n"
	}
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, []byte(code), 0o600); err != nil {
		t.Fatal(err)
	}
	args := []string{"validate", "--config", path}
	if language != "json" {
		args = append(args, "--adapter", "caddyfile")
	}
	cmd := exec.Command(binary, args...)
	cmd.Env = append(os.Environ(), "HOME="+dir, "LIMITKEEPER_KEY=lk_0123456789abcdefghijklmnopqrs", "REDIS_PASSWORD=secret")
	if out, err := cmd.CombinedOutput(); err != nil {
		return string(out)
	}
	return ""
}

// link matches a link of a document: its target, without the anchor, and the anchor.
var link = regexp.MustCompile(`\]\(([^)#:]*)(?:#([^)]*))?\)`)

// Each link from a document to a file or a heading of the project leads somewhere.
func TestDocumentLinks(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(root, "docs", "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	files = append(files, filepath.Join(root, "README.md"), filepath.Join(root, "CONTRIBUTING.md"), filepath.Join(root, "CHANGELOG.md"))
	checked := 0
	for _, file := range files {
		for _, m := range link.FindAllStringSubmatch(readDocument(t, file), -1) {
			target := file
			if m[1] != "" {
				target = filepath.Join(filepath.Dir(file), m[1])
			}
			checked++
			if _, err := os.Stat(target); err != nil {
				t.Errorf("%s: %s: %v", filepath.Base(file), m[0], err)
			} else if m[2] != "" && !anchors(readDocument(t, target))[m[2]] {
				t.Errorf("%s: %s has no heading #%s", filepath.Base(file), filepath.Base(target), m[2])
			}
		}
	}
	if checked < 20 {
		t.Errorf("found %d links, want at least 20", checked)
	}
}

func readDocument(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// anchors returns the anchors of the headings of a document, as GitHub makes them: lower
// case, letters, digits and hyphens only, a hyphen for each space.
func anchors(text string) map[string]bool {
	found := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^#+ (.*)$`).FindAllStringSubmatch(text, -1) {
		anchor := strings.ReplaceAll(strings.ToLower(m[1]), " ", "-")
		found[regexp.MustCompile(`[^a-z0-9_-]`).ReplaceAllString(anchor, "")] = true
	}
	return found
}
