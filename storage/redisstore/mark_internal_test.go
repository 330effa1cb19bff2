package redisstore

import (
	"fmt"
	"testing"
	"time"
)

// Function behind returns the time of missing writes, also when other nodes have added beats since. The node's own
// absence does not count as missing writes.
func TestBehind(t *testing.T) {
	beats := func(from, to int, of string) (list []string) {
		for n := from; n < to; n++ {
			list = append(list, fmt.Sprintf("%d-%s", 1000*n, of))
		}
		return list
	}
	for _, c := range []struct {
		name       string
		known, now []string
		want       time.Duration
	}{
		{"nothing is known yet", nil, beats(0, 5, "a"), 0},
		{"nothing new", beats(0, 5, "a"), beats(0, 5, "a"), 0},
		{"later beats", beats(0, 5, "a"), beats(3, 9, "a"), 0},
		{"the node was away", beats(0, 100, "a"), beats(500, 600, "a"), 0},
		{"a replica that lags by three", beats(0, 100, "a"), beats(0, 97, "a"), 3 * time.Second},
		{"others count on two branches", beats(0, 100, "a"), append(beats(0, 70, "a"), beats(70, 100, "b")...), 30 * time.Second},
		{"an old snapshot", beats(500, 600, "a"), beats(0, 100, "a"), 100 * time.Second},
		{"an old snapshot, and later beats", beats(500, 600, "a"), append(beats(0, 99, "a"), beats(700, 701, "b")...), 100 * time.Second},
	} {
		if got := behind(c.known, c.now); got != c.want {
			t.Errorf("%s: got %v, want %v", c.name, got, c.want)
		}
	}
}
