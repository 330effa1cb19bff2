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
	for _, file := range []string{"README.md", "xcaddy.md"} {
		text, err := os.ReadFile(filepath.Join(root, file))
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range fence.FindAllStringSubmatch(string(text), -1) {
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
	cmd.Env = append(os.Environ(), "HOME="+dir, "LIMITKEEPER_KEY=lk_0123456789abcdefghijklmnopqrs")
	if out, err := cmd.CombinedOutput(); err != nil {
		return string(out)
	}
	return ""
}
