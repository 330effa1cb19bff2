package main

import (
	"errors"
	"os"
	"strings"
	"testing"
)

// stop ends a program, and may be called twice. The output of the program is in its log.
func TestProcessStops(t *testing.T) {
	p, err := start(t.TempDir(), "sleeper", []string{"WORD=hello"}, "sh", "-c", "echo $WORD >&2; exec sleep 600")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.stop)
	err = p.ready(t.Context(), func() error {
		text, err := os.ReadFile(p.log)
		if err == nil && string(text) != "hello\n" {
			err = errors.New("no output yet")
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	p.stop()
	p.stop()
	select {
	case <-p.ended:
	default:
		t.Error("the program runs after stop")
	}
}

// ready returns at once when the program ends, with its exit status and output.
func TestProcessThatEnds(t *testing.T) {
	p, err := start(t.TempDir(), "broken", nil, "sh", "-c", "echo no such option; exit 3")
	if err != nil {
		t.Fatal(err)
	}
	err = p.ready(t.Context(), func() error { return errors.New("not up") })
	if err == nil || !strings.Contains(err.Error(), "broken: it ended: exit status 3\nno such option") {
		t.Errorf("got %v, want the exit status and the output", err)
	}
}

// The error about a missing program names the program. The error of output has the output.
func TestProcessThatIsMissing(t *testing.T) {
	if _, err := start(t.TempDir(), "missing", nil, "/no/such/program"); err == nil || !strings.Contains(err.Error(), "/no/such/program") {
		t.Errorf("got %v, want an error that names the program", err)
	}
	if _, err := output(t.Context(), nil, "sh", "-c", "echo why >&2; exit 1"); err == nil || !strings.Contains(err.Error(), "why") {
		t.Errorf("got %v, want the output", err)
	}
}

// Addresses are free, different, and on loopback.
func TestFreeAddrs(t *testing.T) {
	addrs, err := freeAddrs(4)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, a := range addrs {
		if !strings.HasPrefix(a, "127.0.0.1:") || seen[a] || accepts("tcp", a)() == nil {
			t.Errorf("%s: want a free address on loopback, once", a)
		}
		seen[a] = true
	}
}
