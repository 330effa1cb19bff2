package main

import (
	"strings"
	"testing"
)

// A report tells the machine and the versions of the programs.
func TestMachine(t *testing.T) {
	m := thisMachine(t.Context(), "/no/such/program")
	if m.Cores < 1 || m.Kernel == "" || m.CPU == "" || !strings.HasSuffix(m.Memory, "GiB") || !strings.HasPrefix(m.Go, "1.") {
		t.Errorf("got %+v, want every field", m)
	}
	m.Programs = map[string]string{"Caddy": "v2.11.9", "wrk": "4.1.0"}
	if got, want := m.versions("wrk", "nginx", "Caddy"), "wrk 4.1.0, Caddy 2.11.9"; got != want {
		t.Errorf("versions: got %q, want %q", got, want)
	}
}

// The pattern finds the version in the output of each program.
func TestVersionPattern(t *testing.T) {
	for text, want := range map[string]string{
		"wrk debian/4.1.0-3+b2 [epoll] Copyright":              "4.1.0-3+b2",
		"nginx version: nginx/1.22.1":                          "1.22.1",
		"Redis server v=7.0.15 sha=00000000:0 malloc=jemalloc": "7.0.15",
	} {
		if got := versionPattern.FindString(text); got != want {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
}
