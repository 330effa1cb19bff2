package main

import (
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"strings"
	"time"
)

//go:embed wrk.lua
var wrkScript string

// sample is one measurement.
type sample struct {
	Requests int64         `json:"requests"` // answered, all of them rightly
	Elapsed  time.Duration `json:"elapsed_ns"`
	CPU      time.Duration `json:"cpu_ns"` // of the servers, until they have nothing left to do
	P50      time.Duration `json:"p50_ns,omitempty"`
	P99      time.Duration `json:"p99_ns,omitempty"`
	Counted  *int64        `json:"counted,omitempty"` // requests that Limitkeeper counted

	bytes int64 // of all answers; 0 when unknown
}

// rate returns the requests per second.
func (s sample) rate() float64 { return float64(s.Requests) / s.Elapsed.Seconds() }

// cost returns the CPU time of the servers per request, in microseconds.
func (s sample) cost() float64 {
	return float64(s.CPU.Nanoseconds()) / 1e3 / float64(max(s.Requests, 1))
}

// load says how wrk loads a target.
type load struct {
	connections   int
	duration      time.Duration
	compareBodies bool // compare the body of every answer
}

// wrkResult is the line that wrk.lua prints.
type wrkResult struct {
	Requests     int64 `json:"requests"`
	Microseconds int64 `json:"microseconds"`
	Bytes        int64 `json:"bytes"`
	Refused      int64 `json:"refused"` // answers with a status of 400 or more
	Broken       int64 `json:"broken"`  // connections that failed
	Wrong        int64 `json:"wrong"`   // answers with another body
	P50          int64 `json:"p50"`     // microseconds
	P99          int64 `json:"p99"`
}

// parseWrk reads the output of wrk. It fails when one answer was wrong.
func parseWrk(text string) (s sample, err error) {
	_, line, found := strings.Cut(text, "RESULT ")
	if !found {
		return s, fmt.Errorf("wrk printed no result:\n%s", text)
	}
	line, _, _ = strings.Cut(line, "\n")
	var r wrkResult
	if err := json.Unmarshal([]byte(line), &r); err != nil {
		return s, fmt.Errorf("result of wrk: %w", err)
	}
	if r.Requests == 0 || r.Refused+r.Broken+r.Wrong > 0 {
		return s, fmt.Errorf("of %d answers %d were refusals and %d had another body; %d connections failed",
			r.Requests, r.Refused, r.Wrong, r.Broken)
	}
	return sample{Requests: r.Requests, Elapsed: time.Duration(r.Microseconds) * time.Microsecond, bytes: r.Bytes,
		P50: time.Duration(r.P50) * time.Microsecond, P99: time.Duration(r.P99) * time.Microsecond}, nil
}

// wrk loads a target over HTTP/1.1.
type wrk struct {
	target *target
	// Files that wrk reads: the script, the requests, and the expected body.
	script, requests, want string
}

// newWrk writes the files that wrk reads.
func newWrk(h *harness, name string, t *target) (w *wrk, err error) {
	w = &wrk{target: t}
	if w.script, err = h.file("wrk.lua", wrkScript); err != nil {
		return nil, err
	}
	if w.requests, err = h.file(name+".requests", strings.Join(t.requests, "\x00")+"\x00"); err != nil {
		return nil, err
	}
	w.want, err = h.file(name+".want", t.want)
	return w, err
}

// run loads the target with one thread: the servers need most of the processors.
func (w *wrk) run(ctx context.Context, l load) (sample, error) {
	args := []string{"wrk", "-t1", fmt.Sprint("-c", l.connections), fmt.Sprintf("-d%ds", max(1, int(l.duration.Seconds()))),
		"--timeout", "10s", "-s", w.script, w.target.url("/"), "--", w.requests}
	if l.compareBodies {
		args = append(args, w.want)
		if w.target.whole {
			args = append(args, "whole")
		}
	}
	text, err := output(ctx, nil, args...)
	if err != nil {
		return sample{}, err
	}
	return parseWrk(text)
}

// checkBytes fails unless the answers had the size of the probe's answer. Numbers in an
// answer may have more digits, and each connection may add one interrupted answer.
func checkBytes(s sample, size int64, connections int) error {
	const slack = 8
	if s.bytes == 0 {
		return nil
	}
	least, most := s.Requests*(size-slack), (s.Requests+int64(connections))*(size+slack)
	if s.bytes < least || s.bytes > most {
		return fmt.Errorf("%d answers have %d bytes, want %d each", s.Requests, s.bytes, size)
	}
	return nil
}
