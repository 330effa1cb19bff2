package command

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// protect accepts the usual forms of addresses and upstreams, and refuses other forms, and a store as its data directory.
func TestProtectAddresses(t *testing.T) {
	for in, want := range map[string]string{
		"localhost:9000": "localhost:9000", ":9000": "localhost:9000", "http://a": "a:80", "https://a/": "a:443",
		"https://a:8": "a:8", "[::1]:9": "[::1]:9",
		"": "", "a": "", "ftp://a:1": "", "http://a/b": "", "a:1?x": "", "u@a:1": "", "http://": "", "a:99999": "", "a:0": "",
	} {
		up, err := parseUpstream(in)
		if (err == nil) != (want != "") || err == nil && up.dial != want {
			t.Errorf("upstream %q: got %+v (%v), want %q", in, up, err, want)
		}
	}
	for in, want := range map[string][2]string{
		":8443":           {":8443", "https://localhost:8443"},
		"localhost:8443":  {"localhost:8443", "https://localhost:8443"},
		"127.0.0.1:8443":  {"127.0.0.1:8443", "https://127.0.0.1:8443"},
		"0.0.0.0:8443":    {"0.0.0.0:8443", "https://localhost:8443"},
		"[::1]:443":       {"[::1]:443", "https://[::1]"},
		"api.example:443": {":443", "https://api.example"},
	} {
		a, err := parseEndpoint("--from", in)
		if err != nil || a.listen() != want[0] || a.url() != want[1] {
			t.Errorf("endpoint %q: got %q, %q (%v), want %q", in, a.listen(), a.url(), err, want)
		}
	}
	for _, in := range []string{"", "8443", ":0", ":x", "a/b:1", "*:1", "{env.X}:1", ":99999"} {
		if a, err := parseEndpoint("--from", in); err == nil || !strings.HasPrefix(err.Error(), "--from: ") {
			t.Errorf("endpoint %q: got %+v (%v), want an error", in, a, err)
		}
	}
	store := &protection{data: t.TempDir()}
	if err := os.MkdirAll(filepath.Join(store.data, "database", "table"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := store.checkData(); err == nil || !strings.Contains(err.Error(), "is itself a store, and protect uses the store in ") {
		t.Errorf("the data directory is a store: %v", err)
	}
	if got, want := shellQuote("a'b c"), `'a'\''b c'`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
