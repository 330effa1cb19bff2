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
	Requests int64         `json:"requests"` // answered, all as they should be
	Elapsed  time.Duration `json:"elapsed_ns"`
	CPU      time.Duration `json:"cpu_ns"`                  // of the servers, until nothing was left to do
	Client   time.Duration `json:"client_cpu_ns,omitempty"` // of who asked, where that is told
	P50      time.Duration `json:"p50_ns,omitempty"`
	P99      time.Duration `json:"p99_ns,omitempty"`
	Counted  *int64        `json:"counted,omitempty"` // what the usage grew by, for who counts

	bytes int64 // of all answers; 0 when unknown
}

// rate returns the requests per second.
func (s sample) rate() float64 { return float64(s.Requests) / s.Elapsed.Seconds() }

// cost returns the processor time of the servers for a request, in microseconds.
func (s sample) cost() float64 {
	return float64(s.CPU.Nanoseconds()) / 1e3 / float64(max(s.Requests, 1))
}

// asking returns the processor time of who asked for a request, in microseconds.
func (s sample) asking() float64 {
	return float64(s.Client.Nanoseconds()) / 1e3 / float64(max(s.Requests, 1))
}

// load is how a target is loaded.
type load struct {
	connections int
	duration    time.Duration
	bodies      bool // look at every body
}

// wrkResult is what wrk.lua prints.
type wrkResult struct {
	Requests     int64 `json:"requests"`
	Microseconds int64 `json:"microseconds"`
	Bytes        int64 `json:"bytes"`
	Refused      int64 `json:"refused"` // answers with a status of 400 or more
	Broken       int64 `json:"broken"`  // connections that failed
	Wrong        int64 `json:"wrong"`   // bodies that are not what they should be
	P50          int64 `json:"p50"`     // microseconds
	P99          int64 `json:"p99"`
}

// parseWrk reads what wrk printed, and fails when an answer was not as it should be.
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
	script string
	file   string // with the requests
	want   string // file with what bodies are to be
	apart  bool   // on a core of its own
}

// newWrk writes what wrk reads.
func newWrk(l *lab, name string, t *target) (w *wrk, err error) {
	w = &wrk{target: t, apart: l.apart}
	if w.script, err = l.file("wrk.lua", wrkScript); err != nil {
		return nil, err
	}
	if w.file, err = l.file(name+".requests", strings.Join(t.requests, "\x00")+"\x00"); err != nil {
		return nil, err
	}
	w.want, err = l.file(name+".want", t.want)
	return w, err
}

// run loads the target. One thread is far from busy: what is in front of it is slower.
func (w *wrk) run(ctx context.Context, l load) (sample, error) {
	args := []string{"wrk", "-t1", fmt.Sprint("-c", l.connections), fmt.Sprintf("-d%ds", max(1, int(l.duration.Seconds()))),
		"--timeout", "10s", "-s", w.script, w.target.url("/"), "--", w.file}
	if l.bodies {
		args = append(args, w.want)
		if w.target.whole {
			args = append(args, "whole")
		}
	}
	if w.apart {
		args = onCore(coreOfLoad, args)
	}
	text, err := output(ctx, "", nil, args...)
	if err != nil {
		return sample{}, err
	}
	return parseWrk(text)
}

// checkBytes fails unless answers had the size of the probe's: some bytes for numbers
// with other digits, and one answer that was cut at the end for each that was under way.
func checkBytes(s sample, size int64, underWay int) error {
	const slack = 8
	if s.bytes == 0 {
		return nil
	}
	least, most := s.Requests*(size-slack), s.Requests*(size+slack)+int64(underWay)*(size+slack)
	if s.bytes < least || s.bytes > most {
		return fmt.Errorf("%d answers have %d bytes, want %d each", s.Requests, s.bytes, size)
	}
	return nil
}
