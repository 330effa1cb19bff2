package main

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"time"
)

// streams is how many requests h2load has under way on a connection.
const streams = 4

// h2load loads a target over HTTP/2. It sends one and the same request: it knows no way
// to send others with other bodies.
type h2load struct {
	target *target
	path   string
	fields []string // of the header, such as "content-type: application/json"
	file   string   // with the body
}

// newH2load writes what h2load reads.
func newH2load(l *lab, name string, t *target, path, body string, fields ...string) (*h2load, error) {
	file, err := l.file(name+".body", body)
	return &h2load{target: t, path: path, fields: fields, file: file}, err
}

// run loads the target. Its bodies are not compared: how long they are together is
// known.
func (h *h2load) run(ctx context.Context, l load) (sample, error) {
	args := []string{"h2load", "-t1", fmt.Sprint("-c", l.connections), fmt.Sprint("-m", streams),
		fmt.Sprint("-D", max(1, int(l.duration.Seconds()))), "-d", h.file}
	for _, f := range h.fields {
		args = append(args, "-H", f)
	}
	text, err := output(ctx, "", nil, append(args, h.target.url(h.path))...)
	if err != nil {
		return sample{}, err
	}
	return parseH2load(text)
}

// What h2load prints.
var (
	h2Protocol = regexp.MustCompile(`(?m)^Application protocol: (\S+)$`)
	h2Finished = regexp.MustCompile(`(?m)^finished in ([\d.]+m?s),`)
	h2Requests = regexp.MustCompile(`(?m)^requests: \d+ total, \d+ started, (\d+) done, (\d+) succeeded, (\d+) failed, (\d+) errored, (\d+) timeout$`)
	h2Statuses = regexp.MustCompile(`(?m)^status codes: \d+ 2xx, (\d+) 3xx, (\d+) 4xx, (\d+) 5xx$`)
	h2Traffic  = regexp.MustCompile(`(?m)^traffic: .* \((\d+)\) data$`)
)

// parseH2load reads what h2load printed, and fails when an answer was not as it should
// be. The bytes of the sample are those of bodies.
func parseH2load(text string) (s sample, err error) {
	protocol, finished := h2Protocol.FindStringSubmatch(text), h2Finished.FindStringSubmatch(text)
	requests, statuses, traffic := numbers(h2Requests, text), numbers(h2Statuses, text), numbers(h2Traffic, text)
	if protocol == nil || finished == nil || requests == nil || statuses == nil || traffic == nil {
		return s, fmt.Errorf("h2load printed no result:\n%s", text)
	}
	if s.Elapsed, err = time.ParseDuration(finished[1]); err != nil {
		return s, err
	}
	s.Requests, s.bytes = requests[1], traffic[0]
	switch {
	case protocol[1] != "h2":
		return s, fmt.Errorf("h2load spoke %s, want h2", protocol[1])
	case s.Requests == 0 || s.Elapsed <= 0:
		return s, errors.New("h2load got no answer")
	case requests[0] != requests[1] || requests[2]+requests[3]+requests[4] > 0 || statuses[0]+statuses[1]+statuses[2] > 0:
		return s, fmt.Errorf("of %d answers not all are right: %s; %s", requests[0], h2Requests.FindString(text), h2Statuses.FindString(text))
	}
	return s, nil
}

// numbers returns the numbers that a pattern finds, nil when it does not match.
func numbers(pattern *regexp.Regexp, text string) (found []int64) {
	for i, digits := range pattern.FindStringSubmatch(text) {
		if i == 0 {
			continue
		}
		n, _ := strconv.ParseInt(digits, 10, 64) // the pattern matches digits only
		found = append(found, n)
	}
	return found
}
