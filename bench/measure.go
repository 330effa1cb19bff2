package main

import (
	"context"
	"fmt"
	"time"
)

// subject is one thing that is measured.
type subject struct {
	name string
	base string // the name of the subject that its ratio is to
	adds bool   // it does what the base does, and more
	// cpu returns the processor time that it has used, once it has nothing left to do.
	cpu   func(context.Context) (time.Duration, error)
	run   func(context.Context, load) (sample, error)
	probe func() (int64, error)
	// counted returns how many requests were counted so far; nil for who does not count.
	counted func(context.Context) (int64, error)

	streams int    // requests that a connection has under way at once; 0 is 1
	debug   string // the address of its profiles, "" for none
	size    int64  // of an answer, by the probe
}

// series are the samples of a subject, one for each round.
type series struct {
	subject *subject
	samples []sample
}

// measure measures subjects in turn, at a number of connections: A B A B. Before that
// each is warmed up and each body of an answer looked at.
func (l *lab) measure(ctx context.Context, subjects []*subject, connections int) ([]series, error) {
	all := make([]series, len(subjects))
	for i, s := range subjects {
		all[i].subject = s
		if err := l.warm(ctx, s, connections); err != nil {
			return nil, fmt.Errorf("%s: %w", s.name, err)
		}
	}
	for round := range l.o.rounds {
		for i, s := range subjects {
			m, err := s.measure(ctx, load{connections: connections, duration: l.o.duration})
			if err != nil {
				return nil, fmt.Errorf("%s: %w", s.name, err)
			}
			all[i].samples = append(all[i].samples, m)
			l.say("%d connections, round %d of %d: %-34s %8.0f/s  %6.1f µs CPU", connections, round+1, l.o.rounds, s.name, m.rate(), m.cost())
		}
	}
	return all, nil
}

// warm loads a subject for a while, and checks its answers.
func (l *lab) warm(ctx context.Context, s *subject, connections int) (err error) {
	if s.size, err = s.probe(); err != nil {
		return err
	}
	m, err := s.measure(ctx, load{connections: connections, duration: max(l.o.warmup, time.Second), bodies: true})
	if err != nil {
		return err
	}
	l.say("%d connections, %s: %d answers are right", connections, s.name, m.Requests)
	return nil
}

// measure takes one sample, and checks what was counted meanwhile.
func (s *subject) measure(ctx context.Context, lo load) (m sample, err error) {
	before, err := s.count(ctx)
	if err != nil {
		return m, err
	}
	cpu, err := s.cpu(ctx)
	if err != nil {
		return m, err
	}
	if m, err = s.run(ctx, lo); err != nil {
		return m, err
	}
	after, err := s.cpu(ctx)
	if err != nil {
		return m, err
	}
	m.CPU = after - cpu
	underWay := lo.connections * max(s.streams, 1)
	if err := checkBytes(m, s.size, underWay); err != nil {
		return m, err
	}
	return m, s.checkCount(ctx, &m, before, underWay)
}

// count returns what was counted so far, 0 for who does not count.
func (s *subject) count(ctx context.Context) (int64, error) {
	if s.counted == nil {
		return 0, nil
	}
	return s.counted(ctx)
}

// checkCount fails unless exactly the requests that were answered were counted, beside
// those that were under way when the load ended: at most as many as underWay.
func (s *subject) checkCount(ctx context.Context, m *sample, before int64, underWay int) error {
	if s.counted == nil {
		return nil
	}
	now, err := s.counted(ctx)
	if err != nil {
		return err
	}
	grown := now - before
	m.Counted = &grown
	if grown < m.Requests || grown > m.Requests+int64(underWay) {
		return fmt.Errorf("%d requests were answered and %d counted, with %d under way at most", m.Requests, grown, underWay)
	}
	return nil
}
