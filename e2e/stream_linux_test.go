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

// TestStreams: with a thousand streams open, a stream through a gateway that charges it takes at most 64 KiB of memory more than a stream
// through Caddy's own proxy, and each stream is charged. The log of the test has the time to the first event with and without the gateway:
// of an upstream that answers at once, and of one that answers after 5 ms.
func TestStreams(t *testing.T) {
	const streams, words, each = 1000, 300, 1000 // each: requests in a measurement
	event := func(i int) string {
		return fmt.Sprintf("data: {\"model\":\"m\",\"choices\":[{\"delta\":{\"content\":\"word %d\"}}]}\n\n", i)
	}
	release := make(chan struct{})
	up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		if r.URL.Path == "/slow/completions" {
			time.Sleep(5 * time.Millisecond)
		}
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
	s.start()
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
	for _, path := range []string{"/v1/chat/completions", "/slow/completions"} {
		times := map[string][]time.Duration{}
		for i := range each {
			for _, port := range []string{s.port, plain} {
				resp, took := open(port, path)
				if finish(resp); i >= each/5 {
					times[port] = append(times[port], took)
				}
			}
		}
		median := func(port string) time.Duration {
			slices.Sort(times[port])
			return times[port][len(times[port])/2]
		}
		t.Logf("%s: time to the first event: %v with the gateway, %v without", path, median(s.port), median(plain))
	}

	perStream := func(port string) int64 {
		before := s.live()
		all := make([]*http.Response, streams)
		var opened sync.WaitGroup
		for i := range all {
			opened.Go(func() { all[i], _ = open(port, "/open/completions") })
		}
		opened.Wait()
		n := s.live() - before
		for range streams {
			release <- struct{}{}
		}
		for _, resp := range all {
			if resp != nil {
				finish(resp)
			}
		}
		return n / streams
	}
	perStream(plain) // fills the pools of buffers
	without, with := perStream(plain), perStream(s.port)
	t.Logf("memory of an open stream: %d bytes with the gateway, %d without", with, without)
	if with > without+64<<10 {
		t.Errorf("got %d bytes for an open stream with the gateway and %d without, want at most 64 KiB more", with, without)
	}
	var usage struct {
		Limits []struct {
			Meter string
			Used  int64
		}
	}
	want := int64((2*each + streams) * 7)
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

// live returns the bytes of the server's heap and stacks after a garbage collection.
func (s *site) live() (total int64) {
	s.t.Helper()
	get := func(path string) string {
		resp, err := http.Get("http://localhost:" + s.admin + path)
		if err != nil {
			s.t.Fatal(err)
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err != nil || resp.StatusCode != 200 {
			s.t.Fatalf("%s: got %d, %v", path, resp.StatusCode, err)
		}
		return string(body)
	}
	get("/debug/pprof/heap?gc=1")
	found := regexp.MustCompile(`(?m)^go_memstats_(?:heap_alloc|stack_inuse)_bytes (\S+)$`).FindAllStringSubmatch(get("/metrics"), -1)
	if len(found) != 2 {
		s.t.Fatalf("got %d figures of memory, want 2", len(found))
	}
	for _, m := range found {
		n, err := strconv.ParseFloat(m[1], 64)
		if err != nil {
			s.t.Fatal(err)
		}
		total += int64(n)
	}
	return total
}
