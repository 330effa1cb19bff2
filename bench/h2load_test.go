package main

import (
	"strings"
	"testing"
	"time"
)

// h2loadText is what h2load prints.
const h2loadText = `starting benchmark...
Main benchmark duration is over for thread #0. Stopping all clients.
TLS Protocol: TLSv1.3
Application protocol: h2

finished in 2.01s, 4881.00 req/s, 198.60KB/s
requests: 9762 total, 9890 started, 9762 done, 9762 succeeded, 0 failed, 0 errored, 0 timeout
status codes: 9772 2xx, 0 3xx, 0 4xx, 0 5xx
traffic: 397.19KB (406724) total, 70.55KB (72244) headers (space savings 94.40%), 152.53KB (156192) data
                     min         max         mean         sd        +/- sd
time for request:      382us     95.25ms     24.49ms     12.36ms    69.93%
`

func TestParseH2load(t *testing.T) {
	got, err := parseH2load(h2loadText)
	if want := (sample{Requests: 9762, Elapsed: 2010 * time.Millisecond, bytes: 156192}); err != nil || got != want {
		t.Errorf("got %+v, %v, want %+v", got, err, want)
	}
	short, err := parseH2load(strings.Replace(h2loadText, "2.01s", "812.50ms", 1))
	if err != nil || short.Elapsed != 812500*time.Microsecond {
		t.Errorf("in milliseconds: got %v, %v, want 812.5ms", short.Elapsed, err)
	}
}

// A run in which one answer was not as it should be, or that was not over HTTP/2, is no
// measurement.
func TestParseH2loadRefusesWrongAnswers(t *testing.T) {
	for name, change := range map[string][2]string{
		"a failure":    {"9762 succeeded, 0 failed", "9761 succeeded, 1 failed"},
		"a time-out":   {"0 timeout", "1 timeout"},
		"an error":     {"0 errored", "3 errored"},
		"a redirect":   {"0 3xx", "1 3xx"},
		"a refusal":    {"0 4xx", "1 4xx"},
		"a fault":      {"0 5xx", "1 5xx"},
		"HTTP/1.1":     {"protocol: h2", "protocol: http/1.1"},
		"no answer":    {"9762 done, 9762 succeeded", "0 done, 0 succeeded"},
		"no time":      {"2.01s", "0.00s"},
		"another text": {"status codes", "codes"},
	} {
		text := strings.Replace(h2loadText, change[0], change[1], 1)
		if text == h2loadText {
			t.Errorf("%s: nothing was changed", name)
		}
		if got, err := parseH2load(text); err == nil {
			t.Errorf("%s: got %+v, want an error", name, got)
		}
	}
}
