package main

import (
	"strings"
	"testing"
)

// A table says where it was measured, and with which versions.
func TestMachine(t *testing.T) {
	m := thisMachine(t.Context(), "/no/such/program")
	if m.Cores < 1 || m.Kernel == "" || m.CPU == "" || !strings.HasSuffix(m.Memory, "GiB") || !strings.HasPrefix(m.Go, "1.") {
		t.Errorf("got %+v, want everything", m)
	}
	m.Programs = map[string]string{"Caddy": "v2.11.9", "wrk": "4.1.0"}
	if got, want := m.versions("wrk", "nginx", "Caddy"), "wrk 4.1.0, Caddy 2.11.9"; got != want {
		t.Errorf("versions: got %q, want %q", got, want)
	}
}

// Versions are found in what programs say of themselves.
func TestVersionPattern(t *testing.T) {
	for text, want := range map[string]string{
		"wrk debian/4.1.0-3+b2 [epoll] Copyright":              "4.1.0-3+b2",
		"nginx version: nginx/1.22.1":                          "1.22.1",
		"HAProxy version 2.6.12-1+deb12u4 2026/10/17":          "2.6.12-1+deb12u4",
		"Redis server v=7.0.15 sha=00000000:0 malloc=jemalloc": "7.0.15",
		"h2load nghttp2/1.52.0":                                "1.52.0",
	} {
		if got := versionPattern.FindString(text); got != want {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
}
