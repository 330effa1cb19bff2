package redisstore

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"time"
)

// Each setting that risks the loss of counts is logged when it appears, and then once an hour.
func TestWarnsHourly(t *testing.T) {
	var log bytes.Buffer
	s := &Store{o: Options{Logger: slog.New(slog.NewTextHandler(&log, nil))}, warnings: warningLog{at: map[string]time.Time{}}}
	s.SetWait(Wait{})
	safe := map[string]string{"role": "master", "maxmemory_policy": "noeviction", "aof_enabled": "1", "connected_slaves": "0"}
	lru := map[string]string{"role": "master", "maxmemory_policy": "allkeys-lru", "aof_enabled": "0", "connected_slaves": "1"}
	now := time.Now()
	for _, c := range []struct {
		name        string
		info        map[string]string
		after       time.Duration
		hold, lines int
	}{
		{"all is well", safe, 0, 0, 0},
		{"three begin", lru, 0, 3, 3},
		{"a second later", lru, time.Second, 3, 0},
		{"nearly an hour later", lru, 59 * time.Minute, 3, 0},
		{"an hour later", lru, time.Hour, 3, 3},
		{"all is well again", safe, 61 * time.Minute, 0, 0},
		{"three begin again", lru, 62 * time.Minute, 3, 3},
	} {
		log.Reset()
		hold := s.warn("a:1", c.info, now.Add(c.after))
		if lines := strings.Count(log.String(), "level=WARN"); hold != c.hold || lines != c.lines {
			t.Errorf("%s: %d hold, %d were logged; want %d and %d\n%s", c.name, hold, lines, c.hold, c.lines, log.String())
		}
	}
}
