package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

var (
	binary string // the path of the built binary
	root   string // the path of the module
)

// buildTags are the build tags of the binary.
const buildTags = "nobadger,nomysql,nopgx"

func TestMain(m *testing.M) { os.Exit(run(m)) }

// run builds the binary once and runs the tests.
func run(m *testing.M) int {
	if os.Getenv(attackersWanted) != "" {
		if err := attackFor(os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		return 0
	}
	var err error
	if root, err = filepath.Abs(".."); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	dir, err := os.MkdirTemp("", "limitkeeper-e2e-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	binary = filepath.Join(dir, "limitkeeper")
	build := exec.Command("go", "build", "-trimpath", "-tags="+buildTags, "-o", binary, "../cmd/limitkeeper")
	build.Stdout, build.Stderr = os.Stderr, os.Stderr
	if err := build.Run(); err != nil {
		fmt.Fprintln(os.Stderr, "building the binary:", err)
		return 1
	}
	return m.Run()
}
