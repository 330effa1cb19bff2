package main

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// wrkText is the output of wrk with the result of the script.
const wrkText = `Running 2s test @ http://127.0.0.1:8080/
  1 threads and 32 connections
  51240 requests in 1.10s, 7.82MB read
RESULT {"requests":%d,"microseconds":2000000,"bytes":8198400,"refused":%d,"broken":%d,"wrong":%d,"p50":533,"p99":1587}
`

func TestParseWrk(t *testing.T) {
	got, err := parseWrk(fmt.Sprintf(wrkText, 50000, 0, 0, 0))
	want := sample{Requests: 50000, Microseconds: 2e6, P50: 533, P99: 1587, Bytes: 8198400}
	if err != nil || got != want {
		t.Errorf("got %+v, %v, want %+v", got, err, want)
	}
	if rate := got.rate(); rate != 25000 {
		t.Errorf("rate: got %v, want 25000", rate)
	}
	got.cpu = time.Second
	if cost := got.cost(); cost != 20 {
		t.Errorf("cost: got %v µs, want 20", cost)
	}
}

// A run with one wrong answer is no measurement.
func TestParseWrkRefusesWrongAnswers(t *testing.T) {
	for name, text := range map[string]string{
		"refused": fmt.Sprintf(wrkText, 10, 1, 0, 0),
		"broken":  fmt.Sprintf(wrkText, 10, 0, 1, 0),
		"wrong":   fmt.Sprintf(wrkText, 10, 0, 0, 1),
		"none":    fmt.Sprintf(wrkText, 0, 0, 0, 0),
		"no line": "unable to connect to 127.0.0.1:1 Connection refused\n",
		"no JSON": "RESULT {\n",
	} {
		if got, err := parseWrk(text); err == nil {
			t.Errorf("%s: got %+v, want an error", name, got)
		}
	}
}

// The sum of bytes tells answers of another size without comparing bodies. Numbers may have
// more digits, and each connection may have one interrupted answer.
func TestCheckBytes(t *testing.T) {
	for name, c := range map[string]struct {
		bytes int64
		ok    bool
	}{
		"equal": {100 * 200, true}, "cut": {100*200 + 3*200, true}, "digits": {100 * 203, true},
		"unknown": {0, true}, "shorter": {100 * 150, false}, "longer": {100 * 230, false},
	} {
		err := checkBytes(sample{Requests: 100, Bytes: c.bytes}, 200, 4)
		if (err == nil) != c.ok {
			t.Errorf("%s: got %v, want accepted: %v", name, err, c.ok)
		}
	}
}

// wrk.lua prints every member that parseWrk reads.
func TestScriptAndParserAgree(t *testing.T) {
	for _, member := range []string{"requests", "microseconds", "bytes", "refused", "broken", "wrong", "p50", "p99"} {
		if !strings.Contains(wrkScript, `"`+member+`":%d`) {
			t.Errorf("wrk.lua does not print %s", member)
		}
	}
}
