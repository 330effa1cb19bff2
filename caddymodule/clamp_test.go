package caddymodule

import (
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

// 32 programs of a customer get streams of unknown lengths until the quota is used up. With bounds that are held or clamped, their sum stays within
// the quota; without a hold it is over by at most what was in flight.
func TestCapOfStreams(t *testing.T) {
	const quota, streams, most = 100_000, 32, 1000
	for _, test := range []struct {
		name, options string
		bound         int64
	}{
		{"held", "cost tokens request max_tokens 1000", quota},
		{"clamped", "cost tokens request max_tokens 1000\nclamp max_tokens", quota},
		{"without a hold", "", quota + streams*most},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := newServer(t)
			var sum atomic.Int64
			up := newRecorder(t, func(w http.ResponseWriter, r *http.Request) {
				var body struct {
					Max int64 `json:"max_tokens"`
				}
				_ = json.NewDecoder(r.Body).Decode(&body)
				n := rand.Int64N(body.Max) + 1
				sum.Add(n)
				w.Header().Set("Content-Type", "text/event-stream")
				for range 3 {
					_, _ = io.WriteString(w, "data: {\"model\":\"small-2\",\"choices\":[{\"delta\":{\"content\":\"word\"}}]}\n\n")
					w.(http.Flusher).Flush()
				}
				fmt.Fprintf(w, "data: {\"model\":\"small-2\",\"choices\":[],\"usage\":{\"prompt_tokens\":0,\"completion_tokens\":%d}}\n\ndata: [DONE]\n\n", n)
			})
			s.Start("store memory", "limitkeeper {\ncharge tokens from openai\n"+test.options+"\n}\n"+up.proxy())
			ten := s.aiTenant(quota)
			var group sync.WaitGroup
			for range streams {
				group.Go(func() {
					for refused := 0; refused < 3; {
						r := s.post("/v1/chat/completions", fmt.Sprintf(`{"model":"small-2","messages":[],"stream":true,"max_tokens":%d}`, most), "X-API-Key: "+ten.Secret)
						switch r.StatusCode {
						case http.StatusOK:
							refused = 0
						case http.StatusTooManyRequests:
							refused++
						default:
							t.Errorf("got %d %s", r.StatusCode, r.Text)
							return
						}
					}
				})
			}
			group.Wait()
			s.awaitUsed(ten, "all streams", []string{"tokens"}, sum.Load())
			if sum.Load() > test.bound || sum.Load() < quota-most {
				t.Errorf("the sum of the streams is %d, want %d to %d", sum.Load(), quota-most, test.bound)
			}
			t.Logf("%d of %d tokens", sum.Load(), quota)
		})
	}
}

// With clamp no stream takes more than is left, however many there are; the upstream gets the lowered member.
func TestClamp(t *testing.T) {
	s := newServer(t)
	asked := make(chan int64, 100)
	up := newRecorder(t, func(w http.ResponseWriter, r *http.Request) {
		var body struct {
			Max int64 `json:"max_tokens"`
		}
		_ = json.NewDecoder(r.Body).Decode(&body)
		asked <- body.Max
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"model":"small-2","usage":{"prompt_tokens":0,"completion_tokens":%d}}`, body.Max)
	})
	s.Start("store memory", `limitkeeper {
		charge tokens from openai
		cost tokens request max_tokens 400
		clamp max_tokens
	}
	`+up.proxy())
	ten := s.aiTenant(10_000)
	var group sync.WaitGroup
	var mu sync.Mutex
	statuses := map[int]int{}
	for i := range 32 {
		group.Go(func() {
			body := fmt.Sprintf(`{"model":"small-2","max_tokens":%d}`, 300+i)
			switch i % 4 {
			case 1:
				body = `{"model":"small-2"}`
			case 2:
				body = `{"model":"small-2","messages":"` + strings.Repeat("x", 100_000) + `","max_tokens":700}`
			}
			r := s.post("/v1/chat/completions", body, "X-API-Key: "+ten.Secret)
			mu.Lock()
			defer mu.Unlock()
			statuses[r.StatusCode]++
		})
	}
	group.Wait()
	sum := int64(0)
	for close(asked); ; {
		n, more := <-asked
		if !more {
			break
		}
		sum += n
	}
	s.awaitUsed(ten, "all streams", []string{"tokens"}, 10_000)
	if sum != 10_000 || statuses[200]+statuses[429] != 32 || statuses[429] == 0 {
		t.Errorf("got %d tokens asked of the upstream and the statuses %v, want 10000, and 200 and 429", sum, statuses)
	}
}
