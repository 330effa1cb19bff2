package caddymodule

import (
	"net/http"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/limitkeeper/limitkeeper/adminapi/dashboard"
)

// allocated returns the bytes that f allocates.
func allocated(f func()) int {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return int(after.TotalAlloc - before.TotalAlloc)
}

// One client cannot exhaust the CPU for the others: taking sessions out of a header costs a
// few copies of the header, however many sessions are in it. A copy for each session would
// allocate 2.4 GB for this header of 420 KB.
func TestDropSessionIsLinear(t *testing.T) {
	line := strings.Repeat(dashboard.CookieName+"=lk_session_a-1; a=b; ", 5000)
	h := http.Header{"Cookie": {line, line}}
	if n, most := allocated(func() { dropSession(h) }), 10*len(line); n > most {
		t.Errorf("allocated %d bytes for a header of %d, want at most %d", n, 2*len(line), most)
	}
	if want := strings.TrimPrefix(strings.Repeat(" a=b;", 5000)+" ", " "); !slices.Equal(h["Cookie"], []string{want, want}) {
		t.Errorf("got %.40q…, want the other cookies as they came", h["Cookie"])
	}
}

// FuzzDropSession holds the law of dropping: the cookies of other names stay, byte for byte
// and in their order.
func FuzzDropSession(f *testing.F) {
	f.Add("a=1; __Secure-limitkeeper=x; b=2")
	f.Add("__Secure-limitkeeper;;__Secure-limitkeeper=;  c = \"__Secure-limitkeeper\"")
	f.Fuzz(func(t *testing.T, line string) {
		h := http.Header{"Cookie": {line, "a=b"}}
		dropSession(h)
		others := slices.DeleteFunc(strings.Split(line, ";"), func(pair string) bool {
			name, _, _ := strings.Cut(strings.TrimSpace(pair), "=")
			return name == dashboard.CookieName
		})
		want := []string{strings.TrimLeft(strings.Join(others, ";"), " "), "a=b"}
		if len(others) == strings.Count(line, ";")+1 {
			want[0] = line
		} else if strings.TrimSpace(want[0]) == "" {
			want = want[1:]
		}
		if !slices.Equal(h["Cookie"], want) {
			t.Errorf("%q became %q, want %q", line, h["Cookie"], want)
		}
	})
}
// A session of the dashboard is handed on to nobody, and other cookies are.
func TestSessionIsNotHandedOn(t *testing.T) {
	s := newServer(t)
	s.start("store memory", "limitkeeper {\n observe\n keep_key\n}\nrespond `{http.request.header.Cookie}`")
	for cookies, want := range map[string]string{
		"a=1; __Secure-limitkeeper=lk_session_acct_x-1; b=2":                                "a=1; b=2",
		"__Secure-limitkeeper=lk_session_acct_x-1":                                          "",
		"__Secure-limitkeeper=lk_session_a-1; c=3; __Secure-limitkeeper=\"lk_session_b-2\"": "c=3",
		"a=__Secure-limitkeeper":                                                            "a=__Secure-limitkeeper",
	} {
		if got := s.get("/", "Cookie: "+cookies).body; got != want {
			t.Errorf("%s: got %q handed on, want %q", cookies, got, want)
		}
	}
}
