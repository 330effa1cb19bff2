package caddymodule

import (
	"bufio"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/limitkeeper/limitkeeper/caddymodule/caddytest"
	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/service"
)

// newBody starts an upstream that answers with usage, and sends the bodies that it gets.
func newBody(t *testing.T) (*recorder, chan string) {
	got := make(chan string, 10)
	return newRecorder(t, func(w http.ResponseWriter, r *http.Request) {
		b, err := io.ReadAll(r.Body)
		if err != nil {
			b = append(b, err.Error()...)
		}
		got <- string(b)
		if !strings.Contains(string(b), `"stream":true`) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, `{"usage":{"prompt_tokens":1,"completion_tokens":1}}`)
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n")
		if strings.Contains(string(b), "include_usage") {
			_, _ = io.WriteString(w, "data: {\"choices\": [ ],\"usage\":{\"prompt_tokens\":1,\"completion_tokens\":1}}\n\n")
		}
		_, _ = io.WriteString(w, "data: [DONE]\n\n")
	}), got
}

// observe, and on_store_error allow, forward every request as it came: a body that is refused otherwise, and one that no hold pays.
func TestObserveSendsBodies(t *testing.T) {
	s := newServer(t)
	up, got := newBody(t)
	s.Start("store memory", "limitkeeper {\ncharge tokens from openai\ncost tokens request max_tokens 400\nclamp max_tokens\nobserve\non_store_error allow\n}\n"+up.proxy())
	ten := s.aiTenant(1000)
	long := `{"messages":"` + strings.Repeat("x", 200_000) + `"}`
	sends := func(name, kind, body, want string) {
		t.Helper()
		r := s.sendAs("/v1/chat/completions", kind, body, ten)
		if b := <-got; r.StatusCode != 200 || b != want || strings.Contains(r.Text, "choices\": []") {
			t.Errorf("%s: got %d %s, and %d bytes at the upstream: %.99s", name, r.StatusCode, r.Text, len(b), b)
		}
	}
	sends("no JSON", "application/x-www-form-urlencoded", "a=b&c=d", "a=b&c=d")
	sends("a member twice", "application/json", `{"max_tokens":1,"max_tokens":1}`, `{"max_tokens":1,"max_tokens":1}`)
	tooLong := long[:len(long)-2] + strings.Repeat("y", maxBody) + `"}`
	sends("too long", "application/json", tooLong, tooLong)
	bodySpace.mu.Lock()
	bodySpace.total += maxBodies - 3*bodyStep
	bodySpace.mu.Unlock()
	sends("no space", "application/json", long, long)
	bodySpace.mu.Lock()
	bodySpace.total -= maxBodies - 3*bodyStep
	bodySpace.mu.Unlock()
	sends("with a hold", "application/json", `{"messages":[],"stream":true}`, `{"messages":[],"stream":true,"stream_options":{"include_usage":true},"max_tokens":400}`)
	_, _, err := s.Service().AdjustKey(t.Context(), ten.Account, ten.Key.ID, service.AdjustmentCall{Adjustment: core.Adjustment{Meter: "tokens", Value: 1000, Reason: "x"}})
	s.Must(err)
	sends("with nothing left", "application/json", `{"messages":[],"stream":true,"max_tokens":700}`, `{"messages":[],"stream":true,"max_tokens":700}`)
	caddytest.MemoryFails.Store(true)
	sends("without a store", "application/json", `{"messages":[],"stream":true,"max_tokens":701}`, `{"messages":[],"stream":true,"max_tokens":701}`)
	s.WaitLog("pulled the plug", 1)
}

// Members are added to requests for text only.
func TestOtherAPIs(t *testing.T) {
	s := newServer(t)
	up, got := newBody(t)
	s.Start("store memory", "limitkeeper {\ncharge tokens from openai\ncost tokens request max_tokens 400\nclamp max_tokens\n}\n"+up.proxy())
	ten := s.aiTenant(100_000)
	for _, test := range []struct{ path, body, want string }{
		{"/v1/images/generations", `{"prompt":"x","stream":true}`, ""},
		{"/v1/threads/t/runs", `{"assistant_id":"a","stream":true}`, ""},
		{"/v1/batches", `{"input_file_id":"f"}`, ""},
		{"/v1/responses/input_tokens", `{"input":"x"}`, ""},
		{"/v1/embeddings", `{"input":["a","b"]}`, ""},
		{"/v1/responses", `{"input":"x","stream":true}`, `{"input":"x","stream":true,"max_output_tokens":400}`},
		{"/v1/completions", `{"prompt_embeds":"AAAA","stream":true}`, `{"prompt_embeds":"AAAA","stream":true,"stream_options":{"include_usage":true},"max_tokens":400}`},
		{"/v1/chat/completions", `{"messages":[],"stream":true,"stream_options":null}`, `{"messages":[],"stream":true,"stream_options":{"include_usage":true},"max_tokens":400}`},
		{"/own", `{"input":"x"}`, `{"input":"x","max_output_tokens":400}`},
	} {
		r := s.post(test.path, test.body, "X-API-Key: "+ten.Secret)
		if test.want == "" {
			test.want = test.body
		}
		if b := <-got; r.StatusCode != 200 || b != test.want {
			t.Errorf("%s: got %d %s, and %s at the upstream, want %s", test.path, r.StatusCode, r.Text, b, test.want)
		}
	}
	r := s.sendAs("/v1/chat/completions", "application/json", `{"messages":[]}`, ten, "Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQCAAAAAAIAAAAA")
	if <-got; r.StatusCode != 200 {
		t.Errorf("a client that offers HTTP/2: got %d %s, want 200", r.StatusCode, r.Text)
	}
	if r := s.post("/own", `{"messages":[],"input":"x"}`, "X-API-Key: "+ten.Secret); r.StatusCode != 400 {
		t.Errorf("two prompts: got %d %s, want 400", r.StatusCode, r.Text)
	}
}

// Each API has its own bound: that of another one, and 0, bound nothing.
func TestClampBounds(t *testing.T) {
	s := newServer(t)
	up := newRecorder(t, func(w http.ResponseWriter, r *http.Request) {
		var b map[string]any
		_ = json.NewDecoder(r.Body).Decode(&b)
		name := "max_output_tokens"
		if strings.HasSuffix(r.URL.Path, "completions") {
			name = "max_tokens"
		}
		n, _ := b[name].(float64)
		if n == 0 {
			n = 100_000
		}
		if list, ok := b["prompt"].([]any); ok {
			n *= float64(len(list))
		}
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"usage":{"prompt_tokens":0,"completion_tokens":%.0f}}`, n)
	})
	s.Start("store memory", "limitkeeper {\ncharge tokens from openai\ncost tokens request max_tokens 400\nclamp max_tokens\n}\n"+up.proxy())
	first := s.aiTenant(1000)
	for _, test := range []struct {
		path, body string
		status     int
		used       int64
	}{
		{"/v1/chat/completions", `{"messages":[],"max_output_tokens":1}`, 400, 0},
		{"/v1/responses", `{"input":"x","max_tokens":1}`, 400, 0},
		{"/v1/completions", `{"prompt":"x","max_completion_tokens":1}`, 400, 0},
		{"/v1/chat/completions", `{"messages":[],"max_tokens":0}`, 200, 400},
		{"/v1/chat/completions", `{"messages":[],"max_tokens":-0}`, 200, 400},
		{"/v1/completions", `{"prompt":["a","b","c","d","e","f","g","h","i","j"],"max_tokens":1000}`, 200, 1000},
		{"/v1/completions", `{"prompt":[[1,2],[3]],"max_tokens":1000}`, 200, 1000},
		{"/v1/completions", `{"prompt":["` + strings.Repeat(`a","`, 99) + strings.Repeat("b", 5000) + `"],"max_tokens":1000}`, 200, 1000},
		{"/v1/completions", `{"prompt_embeds":["a","b","c","d","e"],"max_tokens":1000}`, 200, 200},
		{"/v1/chat/completions", `{"messages":[],"max_tokens":1,"n_predict":100000}`, 400, 0},
		{"/v1/chat/completions", `{"messages":[],"n_predict":100000}`, 400, 0},
		{"/v1/completions", `{"messages":[],"prompt_embeds":"A","max_completion_tokens":1}`, 400, 0},
		{"/v1/completions", "{" + strings.Repeat(" ", 5000) + "}", 200, 400},
		{"/v1/completions", `{"prompt":["` + strings.Repeat(`a","`, 1000) + `b"],"max_tokens":1}`, 400, 0},
	} {
		ten := s.another(first)
		if r := s.sendAs(test.path, "application/json", test.body, ten); r.StatusCode != test.status {
			t.Errorf("%s %.80s: got %d %s, want %d", test.path, test.body, r.StatusCode, r.Text, test.status)
		}
		s.awaitUsed(ten, test.body, []string{"tokens"}, test.used)
	}
	ten := s.another(first)
	if r := s.sendAs("/v1/chat/completions", "multipart/form-data; boundary=x", strings.Repeat(" ", 65536)+`{"messages":[],"max_tokens":100000}`, ten); r.StatusCode != 400 {
		t.Errorf("JSON as a form: got %d %s, want 400", r.StatusCode, r.Text)
	}
}

// No upstream gets the key of a request in a trailer, also when the gateway has read the body before.
func TestTrailerOfReadBody(t *testing.T) {
	s, got := newServer(t), make(chan http.Header, 1)
	up := httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		got <- r.Trailer.Clone()
	}))
	up.Config.Protocols = new(http.Protocols)
	up.Config.Protocols.SetUnencryptedHTTP2(true)
	up.Start()
	t.Cleanup(up.Close)
	s.Start("store memory", "limitkeeper {\ncharge tokens from openai\n}\nreverse_proxy h2c://"+up.Listener.Addr().String())
	ten := s.Tenant("default", 10)
	conn, err := net.Dial("tcp", "127.0.0.1:"+s.Port)
	s.Must(err)
	defer conn.Close()
	_, err = fmt.Fprintf(conn, "POST /x HTTP/1.1\r\nHost: localhost\r\nX-API-Key: %[1]s\r\nTransfer-Encoding: chunked\r\nTrailer: X-API-Key, X-Checksum\r\n\r\n"+
		"2\r\n{}\r\n0\r\nX-API-Key: %[1]s\r\nX-Checksum: 42\r\n\r\n", ten.Secret)
	s.Must(err)
	_, err = http.ReadResponse(bufio.NewReader(conn), nil)
	s.Must(err)
	if trailer := <-got; trailer.Get("X-Checksum") != "42" || strings.Contains(fmt.Sprint(trailer), ten.Secret) {
		t.Errorf("the upstream got the trailers %v, want the checksum and no key", trailer)
	}
}

// A stored answer is charged once, and no client makes the upstream compress its answer.
func TestChargedOnce(t *testing.T) {
	s := newServer(t)
	up := newRecorder(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		out := io.Writer(w)
		if len(r.Header["Accept-Encoding"]) == 0 {
			w.Header().Set("Content-Encoding", "gzip")
			z := gzip.NewWriter(w)
			defer z.Close()
			out = z
		}
		_, _ = io.WriteString(out, `{"id":"resp_1","status":"completed","usage":{"input_tokens":900,"output_tokens":100}}`)
	})
	s.Start("store memory", "limitkeeper {\ncharge tokens from openai\n}\n"+up.proxy()+" {\ntransport http {\ncompression off\n}\n}")
	ten := s.aiTenant(2000)
	s.post("/v1/responses", `{"input":"x"}`, "X-API-Key: "+ten.Secret, "Accept-Encoding: gzip", "Connection: keep-alive, Accept-Encoding")
	for range 3 {
		if r := s.Get("/v1/responses/resp_1", "X-API-Key: "+ten.Secret); r.StatusCode != 200 {
			t.Errorf("got %d %s", r.StatusCode, r.Text)
		}
	}
	s.awaitUsed(ten, "one answer", []string{core.MeterRequests, "tokens"}, 4, 1000)
}

// A cost in a trailer is charged, also when the upstream says the length of its answer, as HTTP/2 allows.
func TestChargeByTrailerWithLength(t *testing.T) {
	s := newServer(t)
	up := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Trailer", "X-Tokens")
		w.Header().Set("Content-Length", "5")
		_, _ = io.WriteString(w, "hello")
		w.Header().Set("X-Tokens", "30")
	}))
	up.Config.Protocols = new(http.Protocols)
	up.Config.Protocols.SetUnencryptedHTTP2(true)
	up.Start()
	t.Cleanup(up.Close)
	s.Start("store memory", "limitkeeper {\ncharge tokens from header X-Tokens\ncost tokens 5\n}\nreverse_proxy h2c://"+up.Listener.Addr().String())
	ten := s.aiTenant(1000)
	s.Get("/", "X-API-Key: "+ten.Secret)
	s.awaitUsed(ten, "the trailer", []string{"tokens"}, 30)
}

// A client that sends one request after the other is never refused for a concurrency of 1. It does not wait for a store that is down: the hold is
// settled later.
func TestHoldEndsBeforeTheAnswer(t *testing.T) {
	s := newServer(t)
	text := `{"usage":{"prompt_tokens":1},"x":"` + strings.Repeat("x", 100_000) + `"}`
	up := newRecorder(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/down" {
			caddytest.MemoryFails.Store(true)
		}
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Content-Length", fmt.Sprint(len(text)))
		_, _ = io.WriteString(w, text)
	})
	s.Start("store memory", "limitkeeper {\ncharge tokens from openai\n}\n"+up.proxy())
	ten := s.aiTenant(10_000)
	_, err := s.Service().UpdatePlan(t.Context(), ten.Account, ten.Plan.ID, core.PlanPatch{Concurrency: core.Some(int64(1))})
	s.Must(err)
	for i := range 100 {
		r, err := http.NewRequest(http.MethodPost, s.URL("/v1/chat/completions"), strings.NewReader("{}"))
		s.Must(err)
		r.Header.Set("X-API-Key", ten.Secret)
		answer, err := caddytest.Client.Do(r)
		s.Must(err)
		defer answer.Body.Close() // without another read: the client has the whole answer
		if n, _ := io.ReadFull(answer.Body, make([]byte, len(text))); answer.StatusCode != 200 || n != len(text) {
			t.Fatalf("request %d: got %d and %d bytes", i, answer.StatusCode, n)
		}
	}
	if r := s.post("/down", "{}", "X-API-Key: "+ten.Secret); r.StatusCode != 200 || r.Text != text {
		t.Errorf("while the store is down: got %d", r.StatusCode)
	}
	caddytest.MemoryFails.Store(false) // the hold is settled now, after the answer
	s.awaitUsed(ten, "all answers", []string{"tokens"}, 101)
}
