package caddymodule

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/limitkeeper/limitkeeper/caddymodule/caddytest"
	"github.com/limitkeeper/limitkeeper/core/service"
	"github.com/limitkeeper/limitkeeper/internal/freeport"
	"github.com/limitkeeper/limitkeeper/internal/logthrottle"
)

// refusalLines returns the log lines about refused requests.
func (s *server) refusalLines() (lines []map[string]any) {
	s.T.Helper()
	for line := range strings.Lines(s.Logged()) {
		var v map[string]any
		if json.Unmarshal([]byte(line), &v) == nil && v["msg"] == "request refused" {
			lines = append(lines, v)
		}
	}
	return lines
}

// At level DEBUG each refusal has one line with account, plan, outcome, limit, user and key, from the gateway and
// from /validate, and no line has a secret. An allowed request has none.
func TestRefusalsAreLogged(t *testing.T) {
	s := newServer(t)
	s.Start("store memory", caddytest.Both("respond ok"))
	ten := s.Tenant("default", 1)
	s.Get("/", "X-API-Key: "+ten.Secret)
	s.Get("/", "X-API-Key: "+ten.Secret)
	s.Get("/", "X-API-Key: lk_user_0123456789abcdefghijklmnopqrstuv")
	s.Get("/")
	s.Validate(ten.Owner, ten.Secret)
	lines := s.refusalLines()
	of := func(logger, outcome, more string) string {
		return fmt.Sprintf("debug %s default %s%s", logger, outcome, more)
	}
	limited := fmt.Sprintf(" Größe M 1 1 %d %s", ten.User.ID, ten.Key.ID)
	want := []string{
		of("http.handlers.limitkeeper", "denied", limited),
		of("http.handlers.limitkeeper", "unknown", ""),
		of("http.handlers.limitkeeper", "missing", ""),
		of("http.handlers.limitkeeper_api", "denied", limited),
	}
	for i, line := range lines {
		got := fmt.Sprint(line["level"], " ", line["logger"], " ", line["account"], " ", line["outcome"])
		for _, name := range []string{"plan", "limit", "used", "user_id", "key_id"} {
			if v, ok := line[name]; ok {
				got += fmt.Sprint(" ", v)
			}
		}
		if i >= len(want) || got != want[i] {
			t.Errorf("line %d: got %q of %v", i, got, line)
		}
	}
	if len(lines) != len(want) {
		t.Errorf("got %d lines, want %d", len(lines), len(want))
	}
	if log := s.Logged(); strings.Contains(log, ten.Secret) || strings.Contains(log, ten.Owner) {
		t.Error("a secret is in the log")
	}
}

// Without level DEBUG a refusal writes nothing, and its log line costs no allocation.
func TestRefusalsAreNotLogged(t *testing.T) {
	s := newServer(t)
	s.Port = freeport.Take(t)
	s.Must(s.Load(strings.Replace(s.Config("store memory", caddytest.Both("respond ok")), "level DEBUG", "level INFO", 1)))
	ten := s.Tenant("default", 1)
	for range 2 {
		s.Get("/", "X-API-Key: "+ten.Secret)
		s.Validate(ten.Owner, ten.Secret)
	}
	if lines := s.refusalLines(); len(lines) > 0 {
		t.Errorf("got %v", lines)
	}
	g := &Gateway{log: zap.New(zapcore.NewCore(zapcore.NewJSONEncoder(zapcore.EncoderConfig{}), zapcore.AddSync(&strings.Builder{}), zapcore.InfoLevel))}
	v := &requestState{account: "default", outcome: string(service.Denied), decision: service.Decision{Outcome: service.Denied, Plan: ten.Plan, Key: ten.Key}}
	if n := testing.AllocsPerRun(100, func() { g.logRefusal(v) }); n != 0 {
		t.Errorf("a line that is not written costs %v allocations", n)
	}
}

// While the store fails, the log has a bounded number of lines, from the gateway and from /validate. When this fails, the log
// fills the disk.
func TestFaultsAreThrottled(t *testing.T) {
	s := newServer(t)
	s.Start("store memory\nservice_rate_limit off", caddytest.Both("respond ok"))
	ten := s.Tenant("default", 1000)
	caddytest.MemoryFails.Store(true)
	const requests = 2 * logthrottle.LinesPerMinute
	for range requests {
		s.Get("/", "X-API-Key: "+ten.Secret)
		s.Validate(ten.Owner, ten.Secret)
	}
	for _, message := range []string{"no decision on a request", "store unavailable"} {
		var lines int
		for line := range strings.Lines(s.Logged()) {
			if strings.Contains(line, `"msg":"`+message+`"`) {
				lines++
				if !strings.Contains(line, `"level":"error"`) || !strings.Contains(line, "pulled the plug") {
					t.Errorf("got the line %s", line)
				}
			}
		}
		if lines < 1 || lines >= requests {
			t.Errorf("%s: got %d lines for %d requests, want about %d", message, lines, requests, logthrottle.LinesPerMinute)
		}
	}
}
