package caddymodule

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/limitkeeper/limitkeeper/caddymodule/caddytest"
	"github.com/limitkeeper/limitkeeper/core"
)

// lenientModel answers as an upstream that reads requests in the most lenient ways: names in any case, the first JSON value only, whatever the
// type of the body is. It makes as many tokens as the request allows.
func lenientModel(t *testing.T) *recorder {
	return newRecorder(t, func(w http.ResponseWriter, r *http.Request) {
		var body struct {
			Max      int64 `json:"max_tokens"`
			Newer    int64 `json:"max_completion_tokens"`
			Output   int64 `json:"max_output_tokens"`
			N        int64
			Stream   any
			Options  struct{ Include_Usage bool }    `json:"stream_options"`
			Settings struct{ MaxOutputTokens int64 } `json:"generationConfig"`
			Model    string
		}
		_ = json.NewDecoder(r.Body).Decode(&body)
		n := max(body.Max, body.Newer, body.Output, body.Settings.MaxOutputTokens) * max(1, body.N)
		usage := fmt.Sprintf(`{"model":"small-2","choices":[],"usage":{"prompt_tokens":0,"completion_tokens":%d},"usageMetadata":{"candidatesTokenCount":%[1]d}}`, n)
		if body.Stream == nil || body.Stream == false {
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, usage)
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, "data: {\"choices\":[{\"delta\":{\"content\":\"the answer\"}}]}\n\n")
		if body.Options.Include_Usage {
			_, _ = io.WriteString(w, "data: "+usage+"\n\n")
		}
		_, _ = io.WriteString(w, "data: [DONE]\n\n")
	})
}

// sendAs sends a body with a content type.
func (s *server) sendAs(path, kind, body string, ten *caddytest.Tenant, headers ...string) caddytest.Reply {
	s.T.Helper()
	r, err := http.NewRequest(http.MethodPost, s.URL(path), strings.NewReader(body))
	s.Must(err)
	r.Header.Set("X-API-Key", ten.Secret)
	r.Header.Set("Content-Type", kind)
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		r.Header.Set(name, value)
	}
	answer, err := caddytest.Client.Do(r)
	s.Must(err)
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	s.Must(err)
	return caddytest.Reply{Response: answer, Text: string(text)}
}

// another returns the tenant with another key, which has used nothing.
func (s *server) another(ten *caddytest.Tenant) *caddytest.Tenant {
	s.T.Helper()
	c := *ten
	var err error
	c.Key, c.Secret, err = s.Service().CreateKey(s.T.Context(), ten.Account, core.KeyPatch{Name: new("another"), UserID: &ten.User.ID, PlanID: core.Some(ten.Plan.ID)})
	s.Must(err)
	return &c
}

// However a request is written, it gets no more tokens than are left: it is clamped, or refused.
func TestClampEvasions(t *testing.T) {
	s, up := newServer(t), lenientModel(t)
	s.Start("store memory", `handle_path /openai/* {
		limitkeeper {
			charge tokens from openai
			cost tokens request max_tokens 400
			clamp max_tokens
		}
		`+up.proxy()+`
	}
	handle_path /gemini/* {
		limitkeeper {
			charge tokens from gemini
			cost tokens request generationConfig.maxOutputTokens 400
			clamp generationConfig.maxOutputTokens
		}
		`+up.proxy()+`
	}`)
	first := s.aiTenant(1000)
	pad := strings.Repeat("x", 70_000)
	head := `{"model":"small-2","messages":"`
	split := head + strings.Repeat("x", 65536-len(head)-len(`","max_tokens":1`)) + `","max_tokens":100000}`
	for _, test := range []struct {
		name, path, kind, body string
		status                 int
		used                   int64 // with 200
	}{
		{"plain", "openai", "application/json", `{"messages":[],"max_tokens":100000}`, 200, 1000},
		{"small", "openai", "application/json", `{"messages":[],"max_tokens":10}`, 200, 10},
		{"none", "openai", "application/json", `{"messages":[]}`, 200, 400},
		{"null", "openai", "application/json", `{"messages":[],"max_tokens":null}`, 200, 400},
		{"responses", "openai", "application/json", `{"input":"hello"}`, 200, 400},
		{"empty object", "openai", "application/json", ` { } `, 200, 400},
		{"escaped", "openai", "application/json", `{"max_token\u0073":100000}`, 200, 1000},
		{"escaped twin", "openai", "application/json", `{"max_tokens":1,"max_token\u0073":100000}`, 400, 0},
		{"other case", "openai", "application/json", `{"max_tokens":1,"Max_Tokens":100000}`, 400, 0},
		{"folded letter", "openai", "application/json", `{"max_tokens":1,"max_to` + "\u212a" + `ens":100000}`, 400, 0},
		{"camel case", "openai", "application/json", `{"maxTokens":100000}`, 400, 0},
		{"far behind", "openai", "application/json", `{"messages":"` + pad + `","max_tokens":100000}`, 200, 1000},
		{"far behind, small", "openai", "application/json", `{"messages":"` + pad + `","max_tokens":10}`, 200, 10},
		{"twin far behind", "openai", "application/json", `{"max_tokens":1,"messages":"` + pad + `","max_tokens":100000}`, 400, 0},
		{"number across 64 KiB", "openai", "application/json", split, 200, 1000},
		{"two values", "openai", "application/json", `{"max_tokens":100000}{"max_tokens":1}`, 400, 0},
		{"a comment", "openai", "application/json", `{"max_tokens":1/*"*/,"max_tokens":100000/*"*/}`, 400, 0},
		{"text", "openai", "text/plain", `{"messages":[],"max_tokens":100000}`, 200, 1000},
		{"a form that is JSON", "openai", "application/x-www-form-urlencoded", `{"messages":[],"max_tokens":100000}`, 200, 1000},
		{"no JSON", "openai", "text/plain", `max_tokens=100000`, 400, 0},
		{"UTF-16", "openai", "application/json; charset=utf-16", "\xff\xfe{\x00}\x00", 400, 0},
		{"newer name", "openai", "application/json", `{"messages":[],"max_tokens":1,"max_completion_tokens":100000}`, 200, 1000},
		{"many answers", "openai", "application/json", `{"messages":[],"max_tokens":1000,"n":100}`, 200, 1000},
		{"more answers than tokens", "openai", "application/json", `{"messages":[],"max_tokens":1000,"n":1000}`, 200, 1000},
		{"negative", "openai", "application/json", `{"max_tokens":-1}`, 400, 0},
		{"float", "openai", "application/json", `{"max_tokens":1e9}`, 400, 0},
		{"text for a number", "openai", "application/json", `{"max_tokens":"100000"}`, 400, 0},
		{"deep", "openai", "application/json", strings.Repeat(`{"a":`, 10_001) + "1" + strings.Repeat("}", 10_001), 400, 0},
		{"gemini", "gemini", "application/json", `{"generationConfig":{"maxOutputTokens":100000}}`, 200, 1000},
		{"gemini, none", "gemini", "application/json", `{"contents":[]}`, 200, 400},
		{"gemini, other settings", "gemini", "application/json", `{"generationConfig":{"topK":1}}`, 200, 400},
		{"gemini, no settings", "gemini", "application/json", `{"generationConfig":null}`, 200, 400},
		{"gemini, literal dot", "gemini", "application/json", `{"generationConfig":{"maxOutputTokens":100000},"generationConfig.maxOutputTokens":1}`, 200, 1000},
		{"gemini, other spelling", "gemini", "application/json", `{"generation_config":{"maxOutputTokens":100000}}`, 400, 0},
	} {
		ten := s.another(first)
		r := s.sendAs("/"+test.path+"/v1/chat/completions", test.kind, test.body, ten)
		if r.StatusCode != test.status {
			t.Errorf("%s: got %d %s, want %d", test.name, r.StatusCode, r.Text, test.status)
		}
		s.awaitUsed(ten, test.name, []string{"tokens"}, test.used)
	}
	ten := s.another(first)
	if r := s.sendAs("/openai/v1/chat/completions", "application/json", `{"max_tokens":100000}`, ten, "Content-Encoding: gzip"); r.StatusCode != 400 || !strings.Contains(r.Text, "compressed") {
		t.Errorf("compressed: got %d %s, want 400", r.StatusCode, r.Text)
	}
	if r := s.sendAs("/openai/v1/realtime", "application/json", "", ten, "Upgrade: websocket", "Connection: Upgrade"); r.StatusCode != 400 || !strings.Contains(r.Text, "upgraded") {
		t.Errorf("an upgrade: got %d %s, want 400", r.StatusCode, r.Text)
	}
	if r := s.Get("/openai/v1/models", "X-API-Key: "+ten.Secret); r.StatusCode != 200 {
		t.Errorf("without a body: got %d, want 200", r.StatusCode)
	}
	s.awaitUsed(ten, "what calls no model", []string{"tokens"}, 0)
	if files, err := os.ReadDir(os.TempDir()); err != nil || strings.Contains(fmt.Sprint(files), "limitkeeper-body") {
		t.Errorf("files of bodies: got %v, %v, want none", files, err)
	}
}

// A customer with nothing left of a limit gets no more answers, however its requests write the model and the stream.
func TestChargeEvasions(t *testing.T) {
	s := newServer(t)
	up := newRecorder(t, func(w http.ResponseWriter, r *http.Request) {
		var body struct{ Stream any }
		b, _ := io.ReadAll(r.Body)
		_ = json.Unmarshal(b, &body)
		if body.Stream == nil {
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, `{"model":"small/2","usage":{"prompt_tokens":900,"completion_tokens":120},"usageMetadata":{"promptTokenCount":900,"candidatesTokenCount":120},"modelVersion":"small/2"}`)
			return
		}
		w.Header().Set("Content-Type", "text/event-stream") // no flush, so that it has a Content-Length
		_, _ = io.WriteString(w, "data: {\"model\":\"small/2\",\"choices\":[{\"delta\":{\"content\":\"the answer\"}}]}\n\n")
		if strings.Contains(string(b), "include_usage") {
			_, _ = io.WriteString(w, "data: {\"model\":\"small/2\",\"choices\":[],\"usage\":{\"prompt_tokens\":900,\"completion_tokens\":120}}\n\n")
		}
		_, _ = io.WriteString(w, "data: [DONE]\n\n")
	})
	s.Start("store memory", `handle_path /openai/* {
		limitkeeper {
			charge prices from openai
		}
		`+up.proxy()+`
	}
	handle_path /gemini/* {
		limitkeeper {
			charge prices from gemini
		}
		`+up.proxy()+`
	}`)
	first := s.aiTenant(1000)
	pad := strings.Repeat("x", 70_000)
	for _, test := range []struct{ name, path, kind, body string }{
		{"plain", "openai/v1/chat/completions", "application/json", `{"model":"small/2","messages":[]}`},
		{"escaped", "openai/v1/chat/completions", "application/json", `{"model":"small\/2","messages":[]}`},
		{"far behind", "openai/v1/chat/completions", "application/json", `{"messages":"` + pad + `","model":"small/2"}`},
		{"a model without a price", "openai/v1/chat/completions", "application/json", `{"model":"auto","messages":[]}`},
		{"text", "openai/v1/chat/completions", "text/plain", `{"model":"small/2","messages":[]}`},
		{"multipart", "openai/v1/audio", "multipart/form-data; boundary=x", "--x--"},
		{"gemini", "gemini/v1beta/models/small:generateContent", "application/json", `{"contents":[]}`},
		{"stream", "openai/v1/chat/completions", "application/json", `{"model":"small/2","messages":[],"stream":true}`},
		{"stream, escaped", "openai/v1/chat/completions", "application/json", `{"model":"small/2","messages":[],"strea\u006d":true}`},
		{"stream, far behind", "openai/v1/chat/completions", "application/json", `{"model":"small/2","messages":"` + pad + `","stream":true,"stream_options":{"include_usage":false}}`},
		{"stream, another path", "openai/v1/chat/completions//", "application/json", `{"model":"small/2","messages":[],"stream":true}`},
	} {
		ten := s.another(first)
		if r := s.sendAs("/"+test.path, test.kind, test.body, ten); r.StatusCode != 200 || strings.Contains(r.Text, "prompt_tokens") == strings.Contains(test.name, "stream") {
			t.Errorf("%s: got %d %s", test.name, r.StatusCode, r.Text)
		}
		s.awaitUsed(ten, test.name, []string{"tokens"}, 1020)
		if r := s.sendAs("/"+test.path, test.kind, test.body, ten); r.StatusCode != 429 {
			t.Errorf("%s, with nothing left: got %d %s, want 429", test.name, r.StatusCode, r.Text)
		}
	}
	ten := s.another(first)
	_, err := s.Service().SetPrices(t.Context(), ten.Account, []core.PriceRule{{Model: "*", Costs: map[string]core.Price{"spend": "10000000*output"}}})
	s.Must(err)
	s.sendAs("/openai/v1/chat/completions", "application/json", `{"model":"small/2","messages":[]}`, ten)
	s.awaitUsed(ten, "a cost above the costs that a request can name", []string{"spend"}, 120*10_000_000)
	for _, body := range []string{`{"stream":1,"messages":[]}`, `{"stream":true,"messages":[],"stream_options":[]}`, `{"stream":true,"messages":[],"stream_options":{"include_usage":1}}`, `{"stream":true,"stream_options":{},"stream_option\u0073":null}`} {
		if r := s.sendAs("/openai/v1/chat/completions", "application/json", body, ten); r.StatusCode != 400 {
			t.Errorf("%s: got %d %s, want 400", body, r.StatusCode, r.Text)
		}
	}
}

// A client that leaves before the answer pays what was held: the work may be done. With a request id, nothing could be charged.
func TestChargeClientGone(t *testing.T) {
	s := newServer(t)
	work := make(chan struct{})
	up := newRecorder(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		work <- struct{}{}
		<-r.Context().Done()
	})
	s.Start("store memory", `handle_path /charge/* {
		limitkeeper {
			charge tokens from openai
			cost tokens request max_tokens 400
		}
		`+up.proxy()+`
	}
	handle_path /success/* {
		limitkeeper {
			count_on success
		}
		`+up.proxy()+`
	}`)
	ten := s.aiTenant(1000)
	for i, path := range []string{"/charge/v1/chat/completions", "/success/mail"} {
		ctx, leave := context.WithCancel(t.Context())
		r, err := http.NewRequestWithContext(ctx, http.MethodPost, s.URL(path), strings.NewReader(`{"max_tokens":300}`))
		s.Must(err)
		r.Header.Set("X-API-Key", ten.Secret)
		var group sync.WaitGroup
		group.Go(func() {
			if answer, err := caddytest.Client.Do(r); err == nil {
				answer.Body.Close()
				t.Errorf("%s: got an answer, want none", path)
			}
		})
		<-work
		leave()
		group.Wait()
		s.WaitLog("the cost of a request is unknown", i+1)
		s.awaitUsed(ten, path, []string{core.MeterRequests, "tokens"}, int64(i+1), 300)
	}
	if err := s.Load(s.Config("store memory", "limitkeeper {\ncharge tokens from openai\nrequest_id header Idempotency-Key\n}")); err == nil || !strings.Contains(err.Error(), "would not be charged") {
		t.Errorf("charge with request_id: got %v, want an error", err)
	}
}

// The price of a tool is not evaded by another spelling.
func TestMCPEvasions(t *testing.T) {
	s, up := newServer(t), newRecorder(t, nil)
	s.Start("store memory", "limitkeeper {\ncharge prices from mcp\n}\n"+up.proxy())
	first := s.aiTenant(1000)
	pad := strings.Repeat("x", 70_000)
	for _, test := range []struct {
		body   string
		status int
		used   int64
	}{
		{`{"method":"tools/call","params":{"name":"search"}}`, 200, 10},
		{`{"method":"tools\/call","params":{"name":"search"}}`, 200, 10},
		{`{"method":"tools/call","params":{"name":"s\u0065arch"}}`, 200, 10},
		{`{"method":"tools/call","params":{"arguments":"` + pad + `","name":"search"}}`, 200, 10},
		{`{"method":"tools/call","params":{"name":"search"},"params.name":"x"}`, 200, 10},
		{`[{"method":"tools/call","params":{"name":"search"}}]`, 400, 0},
		{`{"method":"tools/call","params":{"name":"search"},"params":{"name":"x"}}`, 400, 0},
	} {
		ten := s.another(first)
		if r := s.sendAs("/mcp", "application/json", test.body, ten); r.StatusCode != test.status {
			t.Errorf("%.80s: got %d %s, want %d", test.body, r.StatusCode, r.Text, test.status)
		}
		s.awaitUsed(ten, test.body[:40], []string{core.MeterRequests}, test.used)
	}
}

// A long body takes a file, not memory, and a caller has room for so many of them.
func TestBodyBounds(t *testing.T) {
	s := newServer(t)
	wait, entered := make(chan struct{}), make(chan struct{}, 10)
	size, answer := make(chan int64, 10), make(chan struct{})
	up := newRecorder(t, func(w http.ResponseWriter, r *http.Request) {
		entered <- struct{}{}
		<-wait
		n, _ := io.Copy(io.Discard, r.Body)
		size <- n
		<-answer
	})
	used := func() (int64, int) {
		bodySpace.mu.Lock()
		defer bodySpace.mu.Unlock()
		return bodySpace.total, len(bodySpace.byCaller)
	}
	awaitNone := func(when string) {
		t.Helper()
		deadline := time.Now().Add(10 * time.Second)
		for n, _ := used(); n != 0 && time.Now().Before(deadline); n, _ = used() {
			time.Sleep(10 * time.Millisecond)
		}
		if n, callers := used(); n != 0 || callers != 0 {
			t.Errorf("%s: got %d bytes of bodies of %d callers, want none", when, n, callers)
		}
	}
	s.Start("store memory", "limitkeeper {\ncharge tokens from openai\n}\n"+up.proxy())
	ten := s.aiTenant(1000)
	body := func(size int) string { return `{"messages":"` + strings.Repeat("[", size-15) + `"}` }
	long := body(40 << 20)
	var before, during runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	var group sync.WaitGroup
	for range 3 {
		group.Go(func() { s.sendAs("/v1/chat/completions", "application/json", long, ten) })
	}
	for range 3 {
		<-entered
	}
	runtime.GC()
	runtime.ReadMemStats(&during)
	if grown := int64(during.HeapAlloc) - int64(before.HeapAlloc); grown > 8<<20 {
		t.Errorf("three bodies of 40 MiB take %d MiB of memory, want at most 8", grown>>20)
	}
	if r := s.sendAs("/v1/chat/completions", "application/json", long, ten); r.StatusCode != 429 {
		t.Errorf("a fourth one: got %d %s, want 429", r.StatusCode, r.Text)
	}
	if r := s.sendAs("/v1/chat/completions", "application/json", `{"a":`+strings.Repeat("[", 1<<20), ten); r.StatusCode != 400 {
		t.Errorf("brackets: got %d %s, want 400", r.StatusCode, r.Text)
	}
	close(wait)
	for range 3 {
		if n := <-size; n != int64(len(long)) {
			t.Errorf("got %d bytes at the upstream, want %d", n, len(long))
		}
	}
	awaitNone("while the answers run")
	close(answer)
	group.Wait()
	if r := s.sendAs("/v1/chat/completions", "application/json", body(65<<20), ten); r.StatusCode != 413 {
		t.Errorf("65 MiB: got %d %s, want 413", r.StatusCode, r.Text)
	}
	awaitNone("afterwards")
}
