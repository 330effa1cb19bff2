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
	before, err := s.count(ctx)
	if err != nil {
		return m, err
	}
	cpu, err := s.cpu(ctx)
	if err != nil {
		return m, err
	}
	if m, err = s.run(ctx, l); err != nil {
		return m, err
	}
	after, err := s.cpu(ctx)
	if err != nil {
		return m, err
	}
	m.CPU = after - cpu
	if err := checkBytes(m, s.size, l.connections); err != nil {
		return m, err
	}
	return m, s.checkCount(ctx, &m, before, l.connections)
}

// count returns the number of counted requests, 0 for a program without one.
func (s *subject) count(ctx context.Context) (int64, error) {
	if s.counted == nil {
		return 0, nil
	}
	return s.counted(ctx)
}

// checkCount fails unless Limitkeeper counted exactly the answered requests. Each
// connection may add one request that the end of the load interrupted.
func (s *subject) checkCount(ctx context.Context, m *sample, before int64, connections int) error {
	if s.counted == nil {
		return nil
	}
	now, err := s.counted(ctx)
	if err != nil {
		return err
	}
	grown := now - before
	m.Counted = &grown
	if grown < m.Requests || grown > m.Requests+int64(connections) {
		return fmt.Errorf("%d requests were answered and %d counted, with at most %d interrupted", m.Requests, grown, connections)
	}
	return nil
}
