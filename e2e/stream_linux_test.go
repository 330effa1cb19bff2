package e2e

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/limitkeeper/limitkeeper/internal/freeport"
)

// TestStreams: a stream through a gateway that charges it takes no more than 64 KiB of memory beside what Caddy's own proxy takes, with a
// thousand streams open, and each is charged. The log has the time to the first event, with and without the gateway, for docs/benchmarks.md.
func TestStreams(t *testing.T) {
	const streams, words = 1000, 300
	event := func(i int) string {
		return fmt.Sprintf("data: {\"model\":\"m\",\"choices\":[{\"delta\":{\"content\":\"word %d\"}}]}\n\n", i)
	}
	release := make(chan struct{})
	up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "text/event-stream")
		for i := range words {
			_, _ = io.WriteString(w, event(i))
			if i%50 == 0 {
				_ = http.NewResponseController(w).Flush()
			}
		}
		_ = http.NewResponseController(w).Flush()
		if r.URL.Path == "/open/completions" {
			select {
			case <-release:
			case <-r.Context().Done():
				return
			}
		}
		_, _ = io.WriteString(w, "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":4}}\n\ndata: [DONE]\n\n")
	}))
	defer up.Close()
	proxy := "reverse_proxy " + up.Listener.Addr().String()
	s := newSiteOn(t, "badger data", "charge tokens from openai", proxy)
	plain := freeport.Take(t)
	config, err := os.ReadFile(s.config)
	if err != nil {
		t.Fatal(err)
	}
	writeFile(t, s.config, string(config)+"http://:"+plain+" {\n\t"+proxy+"\n}\n")
	p := s.start()
	var plan, key struct {
		ID     string
		APIKey string `json:"api_key"`
	}
	var user struct {
		ID int64 `json:"user_id"`
	}
	s.must("POST", "/functions/v1/plans", map[string]any{"name": "p", "max_requests": nil, "limits": []any{map[string]any{"meter": "tokens", "max": 1_000_000_000, "period": "year"}}}, &plan)
	s.must("POST", "/functions/v1/users", map[string]any{"name": "u", "plan_id": plan.ID}, &user)
	s.must("POST", "/functions/v1/keys", map[string]any{"name": "k", "user_id": user.ID}, &key)
	streaming := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 8}}
	open := func(port, path string) (*http.Response, time.Duration) {
		r, err := http.NewRequestWithContext(context.Background(), "POST", "http://127.0.0.1:"+port+path, strings.NewReader(`{"model":"m","stream":true}`))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("X-API-Key", key.APIKey)
		began := time.Now()
		resp, err := streaming.Do(r)
		if err != nil {
			t.Error(err)
			return nil, 0
		}
		if _, err := bufio.NewReaderSize(resp.Body, 64).ReadString('\n'); err != nil || resp.StatusCode != 200 {
			t.Errorf("the first event: got %d, %v", resp.StatusCode, err)
		}
		return resp, time.Since(began)
	}
	finish := func(resp *http.Response) {
		_, _ = io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close()
	}
	times := map[string][]time.Duration{}
	for i := range 1500 {
		for _, port := range []string{s.port, plain} {
			resp, took := open(port, "/v1/chat/completions")
			if finish(resp); i >= 300 {
				times[port] = append(times[port], took)
			}
		}
	}
	median := func(port string) time.Duration {
		slices.Sort(times[port])
		return times[port][len(times[port])/2]
	}
	t.Logf("time to the first event: %v with the gateway, %v without", median(s.port), median(plain))

	grown := func(port string) int64 {
		before := resident(t, p)
		all := make([]*http.Response, streams)
		var opened sync.WaitGroup
		for i := range all {
			opened.Go(func() { all[i], _ = open(port, "/open/completions") })
		}
		opened.Wait()
		n := resident(t, p) - before
		for range streams {
			release <- struct{}{}
		}
		for _, resp := range all {
			if resp != nil {
				finish(resp)
			}
		}
		return n
	}
	grown(plain) // the first time, the heap grows for its own sake
	without, with := grown(plain), grown(s.port)
	t.Logf("resident memory of %d open streams: %d MB more with the gateway, %d MB without", streams, with>>20, without>>20)
	if with-max(0, without) > streams*(64<<10) {
		t.Errorf("got %d bytes for each stream beside the proxy, want at most 64 KiB", (with-without)/streams)
	}
	var usage struct {
		Limits []struct {
			Meter string
			Used  int64
		}
	}
	want := int64((1500 + streams) * 7)
	for deadline := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		s.must("GET", "/functions/v1/keys/"+key.ID+"/usage", nil, &usage)
		if n := len(usage.Limits); n > 0 && usage.Limits[n-1].Used == want {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("got %+v used, want %d tokens", usage.Limits, want)
		}
	}
}

// resident returns the resident memory of a process in bytes.
func resident(t *testing.T, p *process) int64 {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	kb, err := strconv.ParseInt(string(regexp.MustCompile(`VmRSS:\s+(\d+)`).FindSubmatch(status)[1]), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return kb << 10
}
