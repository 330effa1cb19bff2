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

// sample is one measurement: the line that wrk.lua prints, and the CPU time.
type sample struct {
	Requests     int64 `json:"requests"` // answered
	Microseconds int64 `json:"microseconds"`
	Bytes        int64 `json:"bytes"`   // of all answers; 0 when unknown
	Refused      int64 `json:"refused"` // answers with a status of 400 or more
	Broken       int64 `json:"broken"`  // connections that failed
	Wrong        int64 `json:"wrong"`   // answers with another body
	P50          int64 `json:"p50"`     // microseconds
	P99          int64 `json:"p99"`

	cpu time.Duration // of the servers, until they have nothing left to do
}

// rate returns the requests per second.
func (s sample) rate() float64 { return float64(s.Requests) / float64(s.Microseconds) * 1e6 }

// cost returns the CPU time of the servers per request, in microseconds.
func (s sample) cost() float64 {
	return float64(s.cpu.Nanoseconds()) / 1e3 / float64(max(s.Requests, 1))
}

// load says how wrk loads a target.
type load struct {
	connections   int
	duration      time.Duration
	compareBodies bool // compare the body of every answer
}

// parseWrk reads the output of wrk. It fails when one answer was wrong.
func parseWrk(text string) (s sample, err error) {
	_, line, found := strings.Cut(text, "RESULT ")
	if !found {
		return s, fmt.Errorf("wrk printed no result:\n%s", text)
	}
	if err := json.NewDecoder(strings.NewReader(line)).Decode(&s); err != nil {
		return s, fmt.Errorf("result of wrk: %w", err)
	}
	if s.Requests == 0 || s.Refused+s.Broken+s.Wrong > 0 {
		return s, fmt.Errorf("of %d answers %d were refusals and %d had another body; %d connections failed",
			s.Requests, s.Refused, s.Wrong, s.Broken)
	}
	return s, nil
}

// newSubject returns the subject that answers at a target. wrk reads the script, the requests and the expected body from files.
func (h *harness) newSubject(name string, t *target, processes ...*process) (*subject, error) {
	script, err := h.file("wrk.lua", wrkScript)
	if err != nil {
		return nil, err
	}
	requests, err := h.file("wrk-"+port(t.addr)+".requests", strings.Join(t.requests, "\x00")+"\x00")
	if err != nil {
		return nil, err
	}
	body, err := h.file("wrk-"+port(t.addr)+".want", t.want)
	if err != nil {
		return nil, err
	}
	// One thread: the servers need most of the processors.
	run := func(ctx context.Context, l load) (sample, error) {
		args := []string{"wrk", "-t1", fmt.Sprint("-c", l.connections), fmt.Sprintf("-d%ds", max(1, int(l.duration.Seconds()))),
			"--timeout", "10s", "-s", script, t.url(), "--", requests}
		if l.compareBodies {
			args = append(args, body)
			if t.whole {
				args = append(args, "whole")
			}
		}
		text, err := output(ctx, nil, args...)
		if err != nil {
			return sample{}, err
		}
		return parseWrk(text)
	}
	return &subject{name: name, run: run, probe: t.probe, cpu: cpuOf(processes...)}, nil
}

// checkBytes fails unless the answers had the size of the probe's answer. Numbers in an
// answer may have more digits, and each connection may add one interrupted answer.
func checkBytes(s sample, size int64, connections int) error {
	const slack = 8
	if s.Bytes == 0 {
		return nil
	}
	least, most := s.Requests*(size-slack), (s.Requests+int64(connections))*(size+slack)
	if s.Bytes < least || s.Bytes > most {
		return fmt.Errorf("%d answers have %d bytes, want %d each", s.Requests, s.Bytes, size)
	}
	return nil
}
