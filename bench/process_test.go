package main

import (
	"errors"
	"os"
	"strings"
	"testing"
)

// A program that was started ends when it is told to, with everything it printed at
// hand.
func TestProcessStops(t *testing.T) {
	p, err := start(t.TempDir(), "sleeper", []string{"WORD=hello"}, "sh", "-c", "echo $WORD >&2; exec sleep 600")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.stop)
	err = p.ready(t.Context(), func() error {
		text, err := os.ReadFile(p.log)
		if err == nil && string(text) != "hello\n" {
			err = errors.New("nothing yet")
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
		t.Error("it runs after stop")
	}
}

// A program that ends at once is not waited for, and the error has what it said.
func TestProcessThatEnds(t *testing.T) {
	p, err := start(t.TempDir(), "broken", nil, "sh", "-c", "echo no such option; exit 3")
	if err != nil {
		t.Fatal(err)
	}
	err = p.ready(t.Context(), func() error { return errors.New("not up") })
	if err == nil || !strings.Contains(err.Error(), "broken: it ended: exit status 3\nno such option") {
		t.Errorf("got %v, want the exit status and what it printed", err)
	}
}

// A program that is not there is named.
func TestProcessThatIsMissing(t *testing.T) {
	if _, err := start(t.TempDir(), "missing", nil, "/no/such/program"); err == nil || !strings.Contains(err.Error(), "/no/such/program") {
		t.Errorf("got %v, want an error that names it", err)
	}
	if _, err := output(t.Context(), "", nil, "sh", "-c", "echo why >&2; exit 1"); err == nil || !strings.Contains(err.Error(), "why") {
		t.Errorf("got %v, want what it printed", err)
	}
}

// Addresses are on loopback, free, and different.
func TestFreeAddrs(t *testing.T) {
	addrs, err := freeAddrs(4)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, a := range addrs {
		if !strings.HasPrefix(a, "127.0.0.1:") || seen[a] || accepts(a)() == nil {
			t.Errorf("%s is not free, or there twice, or not on loopback", a)
		}
		seen[a] = true
	}
}
