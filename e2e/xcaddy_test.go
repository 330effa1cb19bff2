package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// caddyVersion is the version of Caddy in the documents and in go.mod.
const caddyVersion = "v2.11.9"

// A Caddy that xcaddy builds from this checkout serves Caddyfile.example.
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

// The main.go of xcaddy.md compiles with the dependencies of this checkout.
func TestOwnMain(t *testing.T) {
	code := section(t, "xcaddy.md", "## Build with your own main.go")["go"]
	main := filepath.Join(t.TempDir(), "main.go")
	writeFile(t, main, code)
	goTool(t, "build", "-o", os.DevNull, main)
}

// go.mod and the documents name the version of Caddy that the tests build.
func TestCaddyVersion(t *testing.T) {
	for _, file := range []string{"go.mod", "xcaddy.md", "README.md"} {
		text, err := os.ReadFile(filepath.Join(root, file))
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(text), caddyVersion) {
			t.Errorf("%s does not name Caddy %s", file, caddyVersion)
		}
	}
}

// unpublished returns a module proxy that has no version of this module. xcaddy then builds the checkout, also when the
// module is published.
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

// goTool runs the go command and returns its output.
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
