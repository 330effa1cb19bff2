package caddymodule

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/limitkeeper/limitkeeper/caddymodule/caddytest"
)

// spanReceiver is an OTLP receiver over HTTP that keeps all spans.
type spanReceiver struct {
	mu    sync.Mutex
	spans []*tracepb.Span
	raw   strings.Builder
}

func (c *spanReceiver) ServeHTTP(_ http.ResponseWriter, r *http.Request) {
	b, err := io.ReadAll(r.Body)
	var request collector.ExportTraceServiceRequest
	if err != nil || proto.Unmarshal(b, &request) != nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.raw.Write(b)
	for _, resource := range request.ResourceSpans {
		for _, scope := range resource.ScopeSpans {
			c.spans = append(c.spans, scope.Spans...)
		}
	}
}

// decisions returns the spans of decisions and the other spans by their id.
func (c *spanReceiver) decisions() (decisions []*tracepb.Span, others map[string]*tracepb.Span) {
	c.mu.Lock()
	defer c.mu.Unlock()
	others = map[string]*tracepb.Span{}
	for _, s := range c.spans {
		if s.Name == "limitkeeper.decide" {
			decisions = append(decisions, s)
		} else {
			others[string(s.SpanId)] = s
		}
	}
	return decisions, others
}

// With the directive tracing, each decision has a span below the span of its request, with account, plan, outcome, limit
// and cost, and without a secret. Without the directive there is none.
func TestSpans(t *testing.T) {
	received := &spanReceiver{}
	endpoint := httptest.NewServer(received)
	t.Cleanup(endpoint.Close)
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint.URL)
	t.Setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")
	t.Setenv("OTEL_BSP_SCHEDULE_DELAY", "20") // milliseconds between two exports
	s := newServer(t)
	s.Start("store memory", caddytest.Both("respond ok"))
	ten := s.Tenant("default", 3)
	s.Get("/", "X-API-Key: "+ten.Secret)
	s.Start("store memory", "tracing {\nspan request\n}\n"+caddytest.Both("respond ok"))
	s.Get("/", "X-API-Key: "+ten.Secret)
	s.Get("/?api_key="+ten.Secret, "X-API-Key: "+ten.Secret)
	s.Get("/", "X-API-Key: "+ten.Secret)
	caddytest.MemoryFails.Store(true)
	s.Get("/", "X-API-Key: "+ten.Secret)
	caddytest.MemoryFails.Store(false)
	caddytest.Eventually(t, "four spans", func() bool {
		decisions, others := received.decisions()
		return len(decisions) >= 4 && len(others) >= 4
	})
	decisions, others := received.decisions()
	outcomes := map[string]int{}
	for _, d := range decisions {
		if others[string(d.ParentSpanId)].GetName() != "request" {
			t.Errorf("the span %v is not below the span of its request", d)
		}
		has := map[string]any{}
		for _, a := range d.Attributes {
			if v := a.Value; v.GetStringValue() != "" {
				has[a.Key] = v.GetStringValue()
			} else {
				has[a.Key] = v.GetIntValue()
			}
		}
		outcome := has["limitkeeper.outcome"].(string)
		outcomes[outcome]++
		want := map[string]any{"limitkeeper.account": "default", "limitkeeper.outcome": outcome, "limitkeeper.cost": int64(1),
			"limitkeeper.plan": "Größe M", "limitkeeper.limit": int64(3)}
		if outcome == outcomeUnavailable {
			delete(want, "limitkeeper.plan")
			delete(want, "limitkeeper.limit")
			delete(want, "limitkeeper.cost") // the price is not known
			if d.Status.GetCode() != tracepb.Status_STATUS_CODE_ERROR {
				t.Errorf("the span of a fault has the status %v", d.Status)
			}
		}
		if len(has) != len(want) {
			t.Errorf("got the attributes %v, want %v", has, want)
		}
		for key, v := range want {
			if has[key] != v {
				t.Errorf("%s: got %v, want %v", key, has[key], v)
			}
		}
	}
	if len(decisions) != 4 || outcomes["allowed"] != 2 || outcomes["denied"] != 1 || outcomes["unavailable"] != 1 {
		t.Errorf("got %d spans with the outcomes %v, want 4: two allowed, one denied, one unavailable", len(decisions), outcomes)
	}
	received.mu.Lock()
	defer received.mu.Unlock()
	for what, secret := range map[string]string{"key": ten.Secret, "owner's key": ten.Owner, "user": "Ann", "error": "pulled the plug"} {
		if strings.Contains(received.raw.String(), secret) {
			t.Errorf("the spans contain the %s", what)
		}
	}
}
