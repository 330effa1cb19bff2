package caddymodule

import (
	"bufio"
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/limitkeeper/limitkeeper/caddymodule/caddytest"
	"github.com/limitkeeper/limitkeeper/core"
)

// model is an upstream that answers as the APIs of models do. The request says how: in the member behave of its body.
type model struct {
	*recorder
	wait chan struct{} // closed when a slow answer may go on
}

func newModel(t *testing.T) *model {
	m := &model{wait: make(chan struct{})}
	m.recorder = newRecorder(t, m.answer)
	return m
}

func (m *model) answer(w http.ResponseWriter, r *http.Request) {
	var body map[string]any
	if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
		http.Error(w, `{"error":{"message":"no JSON"}}`, http.StatusBadRequest)
		return
	}
	behave, _ := body["behave"].(string)
	stream := body["stream"] == true
	switch behave {
	case "429", "500":
		status := map[string]int{"429": 429, "500": 500}[behave]
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		_, _ = io.WriteString(w, `{"error":{"message":"no","type":"server_error"}}`)
		return
	}
	usage := `{"prompt_tokens":900,"completion_tokens":120,"total_tokens":1020,"prompt_tokens_details":{"cached_tokens":300},"completion_tokens_details":{"reasoning_tokens":20}}`
	var events []string
	whole := `{"id":"c1","object":"chat.completion","model":"small-2","choices":[{"index":0,"message":{"role":"assistant","content":"hello"},"finish_reason":"stop"}],"usage":` + usage + `}`
	switch r.URL.Path {
	case "/v1/chat/completions":
		for _, word := range []string{"hel", "lo"} {
			events = append(events, `data: {"id":"c1","object":"chat.completion.chunk","model":"small-2","choices":[{"index":0,"delta":{"content":"`+word+`"},"finish_reason":null}]}`)
		}
		events = append(events, `data: {"id":"c1","object":"chat.completion.chunk","model":"small-2","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}`)
		if options, _ := body["stream_options"].(map[string]any); options["include_usage"] == true && behave != "no usage" {
			events = append(events, `data: {"id":"c1","object":"chat.completion.chunk","model":"small-2","choices":[],"usage":`+usage+`}`)
		}
		events = append(events, `data: [DONE]`)
	case "/v1/messages":
		whole = `{"id":"m1","type":"message","role":"assistant","model":"claude-3","content":[{"type":"text","text":"hello"}],"usage":{"input_tokens":600,"cache_read_input_tokens":300,"cache_creation_input_tokens":50,"output_tokens":120}}`
		events = []string{
			"event: message_start\ndata: " + `{"type":"message_start","message":{"id":"m1","model":"claude-3","usage":{"input_tokens":600,"cache_read_input_tokens":300,"cache_creation_input_tokens":50,"output_tokens":1}}}`,
			"event: content_block_delta\ndata: " + `{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"hello"}}`,
			"event: message_delta\ndata: " + `{"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":120}}`,
			"event: message_stop\ndata: " + `{"type":"message_stop"}`,
		}
	}
	if behave == "no usage" {
		whole = `{"id":"c1","model":"small-2","choices":[]}`
	}
	if !stream {
		w.Header().Set("Content-Type", "application/json")
		var out io.Writer = w
		if strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
			w.Header().Set("Content-Encoding", "gzip")
			z := gzip.NewWriter(w)
			defer z.Close()
			out = z
		}
		_, _ = io.WriteString(out, whole)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	for i, e := range events {
		if behave == "cut" && i == len(events)-2 {
			panic(http.ErrAbortHandler)
		}
		if behave == "slow" && i == 1 {
			select {
			case <-m.wait:
			case <-r.Context().Done():
				return
			}
		}
		_, _ = io.WriteString(w, e+"\n\n")
		_ = http.NewResponseController(w).Flush()
	}
}

// aiTenant gives a tenant a limit of tokens and of spend, and prices for the models.
func (s *server) aiTenant(tokens int64) *caddytest.Tenant {
	s.T.Helper()
	ten := s.Tenant("default", 1000)
	_, err := s.Service().UpdatePlan(s.T.Context(), ten.Account, ten.Plan.ID, core.PlanPatch{Limits: core.Some([]core.Limit{
		{Meter: "tokens", Max: tokens, Period: core.Month}, {Meter: "spend", Max: 1_000_000, Period: core.Month}})})
	s.Must(err)
	_, err = s.Service().SetPrices(s.T.Context(), ten.Account, []core.PriceRule{
		{Model: "small*", Costs: map[string]core.Price{"tokens": "input + cached + output", "spend": "15*input + 8*cached + 60*output"}},
		{Model: "claude*", Costs: map[string]core.Price{"tokens": "input + cached + cache_write + output", "spend": "3*input + 15*output"}},
		{Model: "search", Costs: map[string]core.Price{"requests": "10"}},
	})
	s.Must(err)
	return ten
}

// usedOf returns the usage of a key on some meters.
func (s *server) usedOf(ten *caddytest.Tenant, meters ...string) (used []int64) {
	s.T.Helper()
	u, err := s.Service().KeyUsage(s.T.Context(), ten.Account, ten.Key.ID)
	s.Must(err)
	for _, m := range meters {
		for _, l := range u.Limits {
			if l.Limit.Meter == m {
				used = append(used, l.Used)
				break
			}
		}
	}
	return used
}

// awaitUsed waits until a key has used so much.
func (s *server) awaitUsed(ten *caddytest.Tenant, what string, meters []string, want ...int64) {
	s.T.Helper()
	var got []int64
	for range 200 {
		if got = s.usedOf(ten, meters...); fmt.Sprint(got) == fmt.Sprint(want) {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	s.T.Errorf("%s: got %v used, want %v", what, got, want)
}

// post sends a JSON body.
func (s *server) post(path, body string, headers ...string) caddytest.Reply {
	s.T.Helper()
	r, err := http.NewRequest(http.MethodPost, s.URL(path), strings.NewReader(body))
	s.Must(err)
	for _, h := range append(headers, "Content-Type: application/json") {
		name, value, _ := strings.Cut(h, ": ")
		r.Header.Add(name, value)
	}
	answer, err := caddytest.Client.Do(r)
	s.Must(err)
	defer answer.Body.Close()
	text, _ := io.ReadAll(answer.Body) // it may be cut
	return caddytest.Reply{Response: answer, Text: string(text)}
}

// What an answer says is charged, by the account's prices, whatever its form.
func TestChargePrices(t *testing.T) {
	s, up := newServer(t), newModel(t)
	s.Start("store memory", `handle /openai/* {
		uri strip_prefix /openai
		limitkeeper {
			charge prices from openai
			cost tokens request max_tokens 50
			on_unknown release
		}
		`+up.proxy()+`
	}
	handle /anthropic/* {
		uri strip_prefix /anthropic
		limitkeeper {
			charge prices from anthropic
		}
		`+up.proxy()+`
	}`)
	ten := s.aiTenant(1_000_000)
	meters := []string{core.MeterRequests, "tokens", "spend"}
	total := make([]int64, len(meters))
	for _, test := range []struct {
		name, path, body string
		used             [3]int64
	}{
		{"chat", "/openai/v1/chat/completions", `{"model":"small-2"}`, [3]int64{1, 1020, 15*600 + 8*300 + 60*120}},
		{"chat, stream", "/openai/v1/chat/completions", `{"model":"small-2","stream":true}`, [3]int64{1, 1020, 18600}},
		{"chat, stream that asks for usage", "/openai/v1/chat/completions", `{"model":"small-2","stream":true,"stream_options":{"include_usage":true}}`, [3]int64{1, 1020, 18600}},
		{"chat, stream with other options", "/openai/v1/chat/completions", `{"stream_options":{"include_obfuscation":false},"model":"small-2","stream":true}`, [3]int64{1, 1020, 18600}},
		{"chat, long prompt, stream at its end", "/openai/v1/chat/completions", `{"model":"small-2","messages":[{"content":"` + strings.Repeat("x", 300_000) + `"}],"stream":true}`, [3]int64{1, 1020, 18600}},
		{"chat, 429", "/openai/v1/chat/completions", `{"model":"small-2","behave":"429"}`, [3]int64{1, 0, 0}},
		{"chat, 500", "/openai/v1/chat/completions", `{"model":"small-2","behave":"500"}`, [3]int64{1, 0, 0}},
		{"chat, without usage", "/openai/v1/chat/completions", `{"model":"small-2","behave":"no usage"}`, [3]int64{0, 0, 0}},
		{"chat, cut", "/openai/v1/chat/completions", `{"model":"small-2","stream":true,"behave":"cut"}`, [3]int64{0, 0, 0}},
		{"messages", "/anthropic/v1/messages", `{"model":"claude-3"}`, [3]int64{1, 1070, 3*600 + 15*120}},
		{"messages, stream", "/anthropic/v1/messages", `{"model":"claude-3","stream":true}`, [3]int64{1, 1070, 3600}},
		{"messages, cut", "/anthropic/v1/messages", `{"model":"claude-3","stream":true,"behave":"cut"}`, [3]int64{1, 951, 3*600 + 15*1}},
	} {
		r := s.post(test.path, test.body, "X-API-Key: "+ten.Secret, "Accept-Encoding: gzip")
		for i := range total {
			total[i] += test.used[i]
		}
		s.awaitUsed(ten, test.name, meters, total...)
		if strings.Contains(r.Text, `"choices":[],"usage"`) != strings.Contains(test.name, "asks for usage") {
			t.Errorf("%s: got the answer %s", test.name, r.Text)
		}
	}
}

// A customer pays for what has worked.
func TestCountOn(t *testing.T) {
	s := newServer(t)
	up := newRecorder(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/ok":
		case "/moved":
			http.Redirect(w, r, "/ok", http.StatusFound)
		case "/missing":
			http.NotFound(w, r)
		case "/cut":
			panic(http.ErrAbortHandler)
		default:
			w.WriteHeader(http.StatusBadGateway)
		}
	})
	s.Start("store memory", `handle_path /success/* {
		limitkeeper {
			count_on success
		}
		`+up.proxy()+`
	}
	handle_path /not5xx/* {
		limitkeeper {
			count_on not_5xx
		}
		`+up.proxy()+`
	}
	handle_path /down/* {
		limitkeeper {
			count_on success
		}
		reverse_proxy 127.0.0.1:1
	}
	handle_path /silent/* {
		limitkeeper {
			count_on success
		}
	}`)
	ten := s.Tenant("default", 5)
	total := int64(0)
	for _, test := range []struct {
		path string
		used int64
	}{
		{"/success/ok", 1}, {"/success/moved", 1}, {"/success/missing", 0}, {"/success/bad", 0}, {"/success/cut", 0},
		{"/not5xx/missing", 1}, {"/not5xx/bad", 0}, {"/down/ok", 0}, {"/silent/ok", 1},
	} {
		s.Get(test.path, "X-API-Key: "+ten.Secret)
		total += test.used
		s.awaitUsed(ten, test.path, []string{core.MeterRequests}, total)
	}
	for range 20 { // failures take nothing of the quota
		if r := s.Get("/success/bad", "X-API-Key: "+ten.Secret); r.StatusCode != http.StatusBadGateway {
			t.Fatalf("after failures: got %d, want 502", r.StatusCode)
		}
	}
	s.Get("/success/ok", "X-API-Key: "+ten.Secret)
	s.awaitUsed(ten, "the last one", []string{core.MeterRequests}, 5)
	if r := s.Get("/success/ok", "X-API-Key: "+ten.Secret); r.StatusCode != http.StatusTooManyRequests {
		t.Errorf("over the quota: got %d, want 429", r.StatusCode)
	}
}

// A header, a trailer or a path of JSON says the cost, and a tool of an MCP server has a price.
func TestChargeByAnswer(t *testing.T) {
	s := newServer(t)
	up := newRecorder(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/header":
			w.Header().Set("X-Tokens", "12")
		case "/trailer":
			w.Header().Set("Trailer", "X-Tokens")
			_, _ = io.WriteString(w, "hello")
			w.Header().Set("X-Tokens", "30")
		case "/json":
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, `{"a":{"tokens":1},"meta":{"tokens": 7}}`)
		}
	})
	s.Start("store memory", `@json path /json
	limitkeeper @json {
		charge tokens from json meta.tokens value*2
	}
	@mcp path /mcp
	limitkeeper @mcp {
		charge prices from mcp
	}
	@header path /header /trailer /nothing
	limitkeeper @header {
		charge tokens from header X-Tokens
		cost tokens 5
	}
	`+up.proxy())
	ten := s.aiTenant(1000)
	total := []int64{0, 0}
	for _, test := range []struct {
		path, body string
		used       [2]int64
	}{
		{"/header", "{}", [2]int64{1, 12}}, {"/trailer", "{}", [2]int64{1, 30}}, {"/nothing", "{}", [2]int64{1, 5}}, {"/json", "{}", [2]int64{1, 14}},
		{"/mcp", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"search","arguments":{"name":"other"}}}`, [2]int64{10, 0}},
		{"/mcp", `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`, [2]int64{1, 0}},
	} {
		s.post(test.path, test.body, "X-API-Key: "+ten.Secret)
		total[0], total[1] = total[0]+test.used[0], total[1]+test.used[1]
		s.awaitUsed(ten, test.path, []string{core.MeterRequests, "tokens"}, total...)
	}
}

// So many requests of a plan and of a key are in flight at once, and no more.
func TestConcurrency(t *testing.T) {
	s := newServer(t)
	wait := make(chan struct{})
	var entered sync.WaitGroup
	up := newRecorder(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/slow" {
			entered.Done()
			<-wait
		}
	})
	s.Start("store memory", `limitkeeper
	`+up.proxy())
	ten := s.Tenant("default", 1000)
	_, err := s.Service().UpdatePlan(t.Context(), ten.Account, ten.Plan.ID, core.PlanPatch{Concurrency: core.Some(int64(3))})
	s.Must(err)
	var group sync.WaitGroup
	entered.Add(3)
	for range 3 {
		group.Go(func() { s.Get("/slow", "X-API-Key: "+ten.Secret) })
	}
	entered.Wait()
	r := s.Get("/", "X-API-Key: "+ten.Secret)
	if r.StatusCode != http.StatusTooManyRequests || !strings.Contains(r.Text, `"reason":"concurrency"`) || r.Header.Get("Retry-After") != "1" {
		t.Errorf("one more: got %d, Retry-After %q, %s; want 429 for concurrency, after 1", r.StatusCode, r.Header.Get("Retry-After"), r.Text)
	}
	if n := scrapeValue(t, s, "limitkeeper_gateway_in_flight "); n != "3" {
		t.Errorf("in flight: got %s, want 3", n)
	}
	close(wait)
	group.Wait()
	s.awaitUsed(ten, "afterwards", []string{core.MeterRequests}, 3)
	for range 10 {
		if r := s.Get("/", "X-API-Key: "+ten.Secret); r.StatusCode != http.StatusOK {
			t.Fatalf("one after the other: got %d, want 200", r.StatusCode)
		}
	}
}

// scrapeValue returns the value of a metric.
func scrapeValue(t *testing.T, s *server, name string) string {
	t.Helper()
	for line := range strings.Lines(s.Scrape()) {
		if value, ok := strings.CutPrefix(line, name); ok {
			return strings.TrimSpace(value)
		}
	}
	return "none"
}

// The first event of a stream passes before the second one is there, and a client that leaves pays what was held.
func TestChargeSlowStream(t *testing.T) {
	s, up := newServer(t), newModel(t)
	s.Start("store memory", `limitkeeper {
		charge tokens from openai
		cost tokens 40
	}
	`+up.proxy())
	ten := s.aiTenant(1000)
	read := func(ctx context.Context) (*http.Response, string) {
		r, err := http.NewRequestWithContext(ctx, http.MethodPost, s.URL("/v1/chat/completions"), strings.NewReader(`{"model":"small-2","stream":true,"behave":"slow"}`))
		s.Must(err)
		r.Header.Set("X-API-Key", ten.Secret)
		r.Header.Set("Content-Type", "application/json")
		answer, err := caddytest.Client.Do(r)
		s.Must(err)
		line, err := bufio.NewReader(answer.Body).ReadString('\n')
		s.Must(err)
		return answer, line
	}
	ctx, leave := context.WithCancel(t.Context())
	answer, line := read(ctx)
	if !strings.Contains(line, `"hel"`) {
		t.Errorf("the first event: got %q", line)
	}
	s.awaitUsed(ten, "while it runs", []string{"tokens"}, 40)
	leave()
	_ = answer.Body.Close()
	s.WaitLog("the cost of a request is unknown", 1)
	s.awaitUsed(ten, "after the client has left", []string{"tokens"}, 40)
	close(up.wait)
	answer, _ = read(t.Context())
	_, _ = io.Copy(io.Discard, answer.Body)
	_ = answer.Body.Close()
	s.awaitUsed(ten, "after the whole stream", []string{"tokens"}, 40+1020)
	if r := s.post("/v1/chat/completions", `{"model":"small-2"}`, "X-API-Key: "+ten.Secret); r.StatusCode != http.StatusTooManyRequests {
		t.Errorf("over the quota: got %d, want 429", r.StatusCode)
	}
}
