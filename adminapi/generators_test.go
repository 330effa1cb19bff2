package adminapi_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// Public tools take openapi.yaml as it is, without options and warnings of their own: redocly finds no error, and
// openapi-typescript and orval generate clients that compile and that allow what the API allows.
func TestGenerators(t *testing.T) {
	const folder = "testdata/generators"
	dir := t.TempDir()
	run := func(name string, args ...string) string {
		t.Helper()
		program, err := filepath.Abs(filepath.Join(folder, "node_modules", ".bin", name))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(program); err != nil {
			t.Fatalf("%v: `make tools` installs it", err)
		}
		cmd := exec.Command(program, args...)
		cmd.Env = append(os.Environ(), "REDOCLY_TELEMETRY=off", "REDOCLY_SUPPRESS_UPDATE_NOTICE=true")
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v\n%s", name, err, out)
		}
		return string(out)
	}
	if err := os.CopyFS(dir, os.DirFS(folder+"/client")); err != nil {
		t.Fatal(err)
	}
	run("redocly", "lint", "openapi.yaml")
	run("openapi-typescript", "openapi.yaml", "--output", filepath.Join(dir, "types.ts"))
	if out := run("orval", "--input", "openapi.yaml", "--output", filepath.Join(dir, "client.ts"), "--client", "fetch"); strings.Contains(out, "failed") {
		t.Errorf("orval: %s", out)
	}
	run("tsc", "--project", dir)
}
