package deploy

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// binary is the path of the built binary.
var binary string

func TestMain(m *testing.M) { os.Exit(run(m)) }

// run runs the tests with a binary.
func run(m *testing.M) int {
	if binary = os.Getenv(binaryVariable); binary == "" {
		dir, err := build()
		defer os.RemoveAll(dir)
		if err != nil {
			fmt.Fprintln(os.Stderr, "building the binary:", err)
			return 1
		}
		binary = filepath.Join(dir, "limitkeeper")
	}
	return m.Run()
}

// build builds the binary as the Makefile builds it, in a temporary directory.
func build() (dir string, err error) {
	if dir, err = os.MkdirTemp("", "limitkeeper-deploy-"); err != nil {
		return "", err
	}
	cmd := exec.Command("make", "-C", "..", "-s", "build", "OUT="+filepath.Join(dir, "limitkeeper"))
	cmd.Stderr = os.Stderr
	return dir, cmd.Run()
}

// binaryVariable names the environment variable with the path of the binary, for a test that runs itself in a namespace.
const binaryVariable = "LIMITKEEPER_TEST_BINARY"

// must ends the test with an error.
func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// readFile returns the text of a file.
func readFile(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	must(t, err)
	return string(text)
}
