package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// caddyVersion is the Caddy that the documentation tells to build with: that of
// go.mod.
const caddyVersion = "v2.11.9"

// A Caddy that the real xcaddy builds with this checkout serves Caddyfile.example.
func TestXcaddy(t *testing.T) {
	dir := t.TempDir()
	goTool(t, "-C", filepath.Join(root, "tools"), "build", "-trimpath", "-o", filepath.Join(dir, "xcaddy"), "github.com/caddyserver/xcaddy/cmd/xcaddy")
	built := filepath.Join(dir, "bin", "limitkeeper")
	cmd := exec.Command(filepath.Join(dir, "xcaddy"), "build", caddyVersion,
		"--with", "github.com/limitkeeper/limitkeeper="+root, "--output", built)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOPROXY="+unpublished(t)+","+goTool(t, "env", "GOPROXY"), "GOFLAGS=-buildvcs=false")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("xcaddy build: %v\n%s", err, out)
	}
	runScripts(t, built, "testdata/example.txtar")
}

// The version that the tests build with is the one that go.mod and the documents name.
func TestCaddyVersion(t *testing.T) {
	for _, file := range []string{"go.mod", "docs/caddyfile.md"} {
		text, err := os.ReadFile(filepath.Join(root, file))
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(text), caddyVersion) {
			t.Errorf("%s does not name Caddy %s", file, caddyVersion)
		}
	}
}

// unpublished returns a module proxy that knows this module and no version of it, so
// that what is built is the checkout, published or not.
func unpublished(t *testing.T) string {
	dir := t.TempDir()
	versions := filepath.Join(dir, "github.com", "limitkeeper", "limitkeeper", "@v")
	if err := os.MkdirAll(versions, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(versions, "list"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	return "file://" + filepath.ToSlash(dir)
}

// goTool runs the go command and returns what it prints.
func goTool(t *testing.T, args ...string) string {
	t.Helper()
	cmd := exec.Command("go", args...)
	cmd.Dir, cmd.Stderr = root, os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go %s: %v", strings.Join(args, " "), err)
	}
	return strings.TrimSpace(string(out))
}
