package main

import (
	"context"
	"fmt"
	"time"
)

// subject is a program, or a set of programs, under measurement.
type subject struct {
	name  string
	bases []string // names of the subjects that it is compared with
	run   func(context.Context, load) (sample, error)
	// probe sends one request, checks the answer, and returns the size of the answer in bytes.
	probe func() (int64, error)
	// cpu waits until the programs have nothing left to do, and returns their CPU time.
	cpu func(context.Context) (time.Duration, error)
	// counted returns the number of requests that Limitkeeper has counted so far. It is
	// nil for programs without such a number.
	counted func(context.Context) (int64, error)

	size int64 // of an answer in bytes, from the probe
}

// series are the samples of a subject, one for each round.
type series struct {
	subject *subject
	samples []sample
}

// measure loads subjects in turn, A B A B, at a number of connections. It warms up each
// subject first, and compares every body of an answer meanwhile.
func (h *harness) measure(ctx context.Context, subjects []*subject, connections int) ([]series, error) {
	all := make([]series, len(subjects))
	for i, s := range subjects {
		all[i].subject = s
		if err := h.warm(ctx, s, connections); err != nil {
			return nil, fmt.Errorf("%s: %w", s.name, err)
		}
	}
	for round := range h.o.rounds {
		for i, s := range subjects {
			m, err := s.measure(ctx, load{connections: connections, duration: h.o.duration})
			if err != nil {
				return nil, fmt.Errorf("%s: %w", s.name, err)
			}
			all[i].samples = append(all[i].samples, m)
			h.logf("%d connections, round %d of %d: %-36s %8.0f/s  %6.1f µs CPU", connections, round+1, h.o.rounds, s.name, m.rate(), m.cost())
		}
	}
	return all, nil
}

// warm loads a subject and compares the body of every answer.
func (h *harness) warm(ctx context.Context, s *subject, connections int) (err error) {
	if s.size, err = s.probe(); err != nil {
		return err
	}
	m, err := s.measure(ctx, load{connections: connections, duration: max(h.o.warmup, time.Second), compareBodies: true})
	if err != nil {
		return err
	}
	h.logf("%d connections, %s: %d answers are right", connections, s.name, m.Requests)
	return nil
}

// measure takes one sample, and checks the number of counted requests.
func (s *subject) measure(ctx context.Context, l load) (m sample, err error) {
	var before, after int64
	if s.counted != nil {
		if before, err = s.counted(ctx); err != nil {
			return m, err
		}
	}
	start, err := s.cpu(ctx)
	if err != nil {
		return m, err
	}
	if m, err = s.run(ctx, l); err != nil {
		return m, err
	}
	end, err := s.cpu(ctx)
	if err != nil {
		return m, err
	}
	m.cpu = end - start
	if s.counted != nil {
		if after, err = s.counted(ctx); err != nil {
			return m, err
		}
		// Each connection may add one request that the end of the load interrupted.
		if n := after - before; n < m.Requests || n > m.Requests+int64(l.connections) {
			return m, fmt.Errorf("%d requests were answered and %d counted, with at most %d interrupted", m.Requests, n, l.connections)
		}
	}
	return m, checkBytes(m, s.size, l.connections)
}
