package e2e

import (
	"encoding/json"
	"net/http"
	"testing"
	"time"

	"github.com/limitkeeper/limitkeeper/storage/redisstore/redistest"
)

// One list of prices decides what a search and a list cost, through the gateway and POST /validate, on each node and after a change. When this
// fails, a customer pays another price at one of the doors.
func TestPrices(t *testing.T) {
	for _, tt := range []struct {
		name  string
		store func(*testing.T) string
		nodes int
	}{
		{"badger", func(*testing.T) string { return "badger data" }, 1},
		{"Cluster", func(t *testing.T) string { return redisStore(redistest.StartCluster(t).Addrs()...) }, 2},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			nodes := startNodes(t, tt.nodes, tt.store(t), "")
			key, secret := nodes[0].newKey(1_000_000)
			total := int64(0)
			spend := func(s *site, path string) {
				t.Helper()
				status, b, err := s.send(http.MethodGet, path, nil, map[string]string{"X-API-Key": secret})
				if err != nil || status != 200 {
					t.Fatalf("gateway: got %d %s, %v", status, b, err)
				}
				var verdict struct{ Success bool }
				status, b, err = s.call(http.MethodPost, "/functions/v1/validate", map[string]any{"api_key": secret, "endpoint": path, "method": "GET"})
				if err != nil || status != 200 || json.Unmarshal(b, &verdict) != nil || !verdict.Success {
					t.Fatalf("validate: got %d %s, %v", status, b, err)
				}
			}
			for _, search := range []int64{10, 7} {
				nodes[0].must("PUT", "/functions/v1/prices", map[string]any{"rules": []map[string]any{
					{"endpoint": "GET /search*", "costs": map[string]any{"requests": search}},
					{"endpoint": "/export", "costs": map[string]any{"requests": 3, "rows": "input"}}}}, nil)
				for _, s := range nodes {
					s.awaitPrice(search)
					for path, price := range map[string]int64{"/search/a": search, "/list": 1, "/export": 3} {
						spend(s, path)
						total += 2 * price
					}
				}
				if used, _ := nodes[0].used(key); used != total {
					t.Errorf("with %d for a search: got the usage %d, want %d", search, used, total)
				}
			}
		})
	}
}

// awaitPrice waits until the node quotes the price of a search: it hears of a change on another node within a second.
func (s *site) awaitPrice(want int64) {
	s.t.Helper()
	var quote struct{ Costs map[string]int64 }
	for deadline := time.Now().Add(10 * time.Second); quote.Costs["requests"] != want; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			s.t.Fatalf("got the price %d, want %d", quote.Costs["requests"], want)
		}
		s.must("POST", "/functions/v1/prices/quote", map[string]any{"endpoint": "/search", "method": "GET"}, &quote)
	}
}
