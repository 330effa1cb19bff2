package main

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// fake is a subject without a program. It records the order of its loads.
type fake struct {
	name    string
	journal *[]string
	answers int64 // for each load
	counts  int64 // requests that it counts for each load
	total   int64 // requests that it has counted
	err     error
}

func (f *fake) subject() *subject {
	return &subject{name: f.name,
		run: func(_ context.Context, l load) (sample, error) {
			*f.journal = append(*f.journal, f.name)
			f.total += f.counts
			return sample{Requests: f.answers, Microseconds: 1e6}, f.err
		},
		probe:   func() (int64, error) { return 100, nil },
		cpu:     func(context.Context) (time.Duration, error) { return time.Duration(f.total) * time.Microsecond, nil },
		counted: func(context.Context) (int64, error) { return f.total, nil },
	}
}

func testHarness() *harness {
	return &harness{o: &options{rounds: 3, duration: time.Second, keys: 1}, began: time.Now()}
}

// Subjects are loaded in turn, after a warm-up of each: a change of the machine during a
// run touches all subjects alike.
func TestMeasureInTurn(t *testing.T) {
	var journal []string
	a, b := &fake{name: "a", journal: &journal, answers: 100, counts: 100}, &fake{name: "b", journal: &journal, answers: 50, counts: 51}
	all, err := testHarness().measure(t.Context(), []*subject{a.subject(), b.subject()}, 4)
	if err != nil {
		t.Fatal(err)
	}
	if want := strings.Fields("a b a b a b a b"); !cmp.Equal(want, journal) {
		t.Errorf("order: got %v, want %v", journal, want)
	}
	if len(all) != 2 || len(all[0].samples) != 3 || len(all[1].samples) != 3 {
		t.Fatalf("got %d series, want 2 of 3 samples", len(all))
	}
	if got := all[1].samples[0].cpu; got != 51*time.Microsecond {
		t.Errorf("sample: got %v of CPU, want 51µs", got)
	}
}

// A gateway that counts fewer or more requests than it answers gets no figure. Each of the
// 4 connections may have one interrupted request that is counted.
func TestMeasureChecksTheCount(t *testing.T) {
	for name, c := range map[string]struct {
		counts int64
		ok     bool
	}{"all": {100, true}, "interrupted": {104, true}, "one less": {99, false}, "one more": {105, false}, "none": {0, false}} {
		f := &fake{name: "f", journal: new([]string), answers: 100, counts: c.counts}
		_, err := testHarness().measure(t.Context(), []*subject{f.subject()}, 4)
		if (err == nil) != c.ok {
			t.Errorf("%s: got %v, want accepted: %v", name, err, c.ok)
		}
	}
}

// An error names its subject.
func TestMeasureNamesTheSubject(t *testing.T) {
	f := &fake{name: "the gateway", journal: new([]string), answers: 1, counts: 1, err: errors.New("of 9 answers 3 were refusals")}
	_, err := testHarness().measure(t.Context(), []*subject{f.subject()}, 4)
	if err == nil || !strings.Contains(err.Error(), "the gateway: of 9 answers") {
		t.Errorf("got %v, want an error that names the gateway", err)
	}
}
