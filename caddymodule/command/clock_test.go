package command

import (
	"bytes"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/limitkeeper/limitkeeper/caddymodule"
	"github.com/limitkeeper/limitkeeper/caddymodule/caddytest"
	"github.com/limitkeeper/limitkeeper/core/clocktest"
	"github.com/limitkeeper/limitkeeper/core/service"
	"github.com/limitkeeper/limitkeeper/internal/freeport"
)

const clockYear = 365 * 24 * time.Hour

// clockCommand runs a clock command as the binary would.
func (s *server) clockCommand(args ...string) (string, error) {
	cmd := &cobra.Command{Use: "clock", SilenceUsage: true, SilenceErrors: true}
	clockCommand(cmd)
	var out bytes.Buffer
	cmd.SetOut(&out)
	cmd.SetArgs(args)
	err := cmd.Execute()
	return out.String(), err
}

// newClockServer starts a server on disk whose clock a test sets, with a key that has used 601
// of 1,000 this year.
func newClockServer(t *testing.T) (*server, *caddytest.Tenant, *clocktest.Clock) {
	t.Helper()
	machine := clocktest.New(time.Date(2026, time.November, 22, 10, 0, 0, 0, time.UTC))
	s := newServer(t)
	caddymodule.ReadClock = machine.Read
	t.Cleanup(func() { caddymodule.ReadClock = nil })
	s.Start("store badger %dir/data", caddytest.Both("respond ok"))
	ten := s.Tenant("default", 1000)
	d, err := s.Service().Validate(t.Context(), ten.Account, service.Request{Secret: ten.Secret, Endpoint: "/", Method: "GET", Cost: 601})
	if err != nil || !d.Allowed() {
		t.Fatalf("got %+v, %v, want allowed", d, err)
	}
	return s, ten, machine
}

// wantLeft makes a request that passes the gateway, and checks the remaining quota and its reset.
func (s *server) wantLeft(what string, ten *caddytest.Tenant, left, resetYear int) {
	s.T.Helper()
	got := s.Get("/", "X-API-Key: "+ten.Secret)
	reset, _ := strconv.ParseInt(got.Header.Get("X-RateLimit-Reset"), 10, 64)
	if got.StatusCode != 200 || got.Header.Get("X-RateLimit-Remaining") != strconv.Itoa(left) || time.Unix(reset, 0).UTC().Year() != resetYear {
		s.T.Errorf("%s: got %d with %s left until %s, want 200 with %d left until %d", what, got.StatusCode,
			got.Header.Get("X-RateLimit-Remaining"), time.Unix(reset, 0).UTC(), left, resetYear)
	}
}

// A clock that is a year ahead for a moment forgets no usage. Health, metrics and log show the
// jump. A clock that stays ahead is used after a minute.
func TestClockJump(t *testing.T) {
	s, ten, machine := newClockServer(t)
	health := func(want string) {
		t.Helper()
		if got := s.Get("/functions/v1/health", "X-Forwarded-Proto: https"); got.StatusCode != 200 || strings.TrimSpace(got.Text) != want {
			t.Errorf("got the health %d %s, want %s", got.StatusCode, got.Text, want)
		}
	}
	figures := func(ahead string, jumps int) {
		t.Helper()
		for _, want := range []string{"\nlimitkeeper_clock_ahead_seconds " + ahead + "\n", "\nlimitkeeper_clock_jumps_total " + strconv.Itoa(jumps) + "\n"} {
			if got := s.Scrape(); !strings.Contains(got, want) {
				t.Errorf("want %q in the metrics\n%s", want, got)
			}
		}
	}
	health(`{"status":"ok"}`)
	figures("0", 0)

	machine.Step(clockYear)
	s.wantLeft("a year ahead", ten, 398, 2027)
	health(`{"status":"ok","clock":{"used":"2026-11-22T10:00:00Z","ahead_seconds":31536000}}`)
	figures("3.1536e+07", 1)
	machine.Pass(59 * time.Second)
	s.wantLeft("a minute later", ten, 397, 2027)
	machine.Step(-clockYear)
	s.wantLeft("after the return", ten, 396, 2027)
	health(`{"status":"ok"}`)
	figures("0", 1)
	s.WaitLog("the clock is far ahead", 1)
	s.WaitLog(`"clock":"2027-11-22T10:00:00Z","ahead":"8760h0m0s","used":"2026-11-22T10:00:00Z"`, 1)
	s.WaitLog("the clock is right again", 1)

	machine.Step(clockYear)
	s.wantLeft("a year ahead again", ten, 395, 2027)
	machine.Pass(time.Minute)
	s.wantLeft("after a minute on a steady clock", ten, 999, 2028)
	health(`{"status":"ok"}`)
	figures("0", 2)
	s.WaitLog("the clock was steady for a minute", 1)
	if n := strings.Count(s.Logged(), "the clock is far ahead"); n != 2 {
		t.Errorf("%d jumps are logged, want 2", n)
	}
}

// The operator accepts a jump by a command. Its errors are one line.
func TestClockAccept(t *testing.T) {
	s, ten, machine := newClockServer(t)
	fails := func(want string, args ...string) {
		t.Helper()
		if out, err := s.clockCommand(args...); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") || out != "" {
			t.Errorf("%q: got %q, %v, want one line with %q", args, out, err, want)
		}
	}
	fails("accepting the clock: nothing to accept: the wall clock is in use", "accept", "--address", s.Admin)
	fails("accepting the clock: no server answers at the admin endpoint localhost:", "accept", "--address", "localhost:"+freeport.Take(t))
	fails("wrong number of arguments; usage: clock accept", "accept", "now")
	fails(`unknown command "frob"`, "frob")

	machine.Step(clockYear)
	out, err := s.clockCommand("accept", "--address", s.Admin)
	if want := "Accepted 2027-11-22T10:00:00Z, which is 8760h0m0s ahead of the time of before.\n"; err != nil || out != want {
		t.Errorf("got %q, %v, want %q", out, err, want)
	}
	s.wantLeft("after the command", ten, 999, 2028)
	s.WaitLog("confirmed by limitkeeper clock accept and is in use", 1)
	machine.Step(clockYear)
	out, err = s.clockCommand("accept", "--json", "--address", s.Admin)
	if want := `{"clock":"2028-11-21T10:00:00Z","ahead_seconds":31536000}` + "\n"; err != nil || out != want {
		t.Errorf("got %q, %v, want %q", out, err, want)
	}
}
