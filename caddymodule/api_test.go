package caddymodule

import "testing"

// The dashboard is served unless it is off. Other paths go to the next handler.
func TestDashboardOff(t *testing.T) {
	s := newServer(t)
	for _, tc := range []struct {
		api                   string
		dashboard, bare, rest int
	}{
		{"limitkeeper_api", 200, 308, 401},
		{"limitkeeper_api {\n dashboard on\n}", 200, 308, 401},
		{"limitkeeper_api {\n dashboard off\n}", 404, 404, 401},
	} {
		s.Start("store memory", tc.api+"\nrespond 404")
		for path, want := range map[string]int{"/dashboard/sign-in": tc.dashboard, "/dashboard": tc.bare, "/functions/v1/keys": tc.rest, "/dashboards": 404} {
			if got := s.Get(path, "X-Forwarded-Proto: https").StatusCode; got != want {
				t.Errorf("%s: %s: got %d, want %d", tc.api, path, got, want)
			}
		}
	}
}
