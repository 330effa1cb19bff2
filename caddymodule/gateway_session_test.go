package caddymodule

import "testing"

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
