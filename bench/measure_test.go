package main

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// fake is a subject without a program. It writes down when it was loaded.
type fake struct {
	name    string
	journal *[]string
	answers int64 // to one load
	counts  int64 // of those
	used    int64
	err     error
}

func (f *fake) subject(base string) *subject {
	return &subject{name: f.name, base: base, adds: true,
		run: func(_ context.Context, l load) (sample, error) {
			*f.journal = append(*f.journal, f.name)
			f.used += f.counts
			return sample{Requests: f.answers, Elapsed: time.Second}, f.err
		},
		probe:   func() (int64, error) { return 100, nil },
		cpu:     func(context.Context) (time.Duration, error) { return time.Duration(f.used) * time.Microsecond, nil },
		counted: func(context.Context) (int64, error) { return f.used, nil },
	}
}

func testLab() *lab {
	return &lab{o: &options{rounds: 3, duration: time.Second, keys: 1}, out: io.Discard, began: time.Now()}
}

// Everything is measured in turn, so that what changes meanwhile on the machine
// touches all alike, after a warm-up of each.
func TestMeasureInTurn(t *testing.T) {
	var journal []string
	a, b := &fake{name: "a", journal: &journal, answers: 100, counts: 100}, &fake{name: "b", journal: &journal, answers: 50, counts: 51}
	all, err := testLab().measure(t.Context(), []*subject{a.subject("a"), b.subject("a")}, 4)
	if err != nil {
		t.Fatal(err)
	}
	if want := strings.Fields("a b a b a b a b"); !cmp.Equal(want, journal) {
		t.Errorf("order: got %v, want %v", journal, want)
	}
	if len(all) != 2 || len(all[0].samples) != 3 || len(all[1].samples) != 3 {
		t.Fatalf("got %d series, want 2 of 3 samples", len(all))
	}
	got := all[1].samples[0]
	if got.CPU != 51*time.Microsecond || got.Counted == nil || *got.Counted != 51 {
		t.Errorf("sample: got %v of CPU and %v counted, want 51µs and 51", got.CPU, got.Counted)
	}
}

// A gateway that counts fewer or more than it answered is no gateway, and its speed
// is not reported. Those under way when the load ended may be counted.
func TestMeasureChecksWhatWasCounted(t *testing.T) {
	for name, c := range map[string]struct {
		counts int64
		ok     bool
	}{"all": {100, true}, "under way": {104, true}, "one less": {99, false}, "one more": {105, false}, "none": {0, false}} {
		f := &fake{name: "f", journal: new([]string), answers: 100, counts: c.counts}
		if _, err := testLab().measure(t.Context(), []*subject{f.subject("f")}, 4); (err == nil) != c.ok {
			t.Errorf("%s: got %v, want accepted: %v", name, err, c.ok)
		}
	}
}

// An error names what it is about.
func TestMeasureNamesWhatFailed(t *testing.T) {
	f := &fake{name: "the gateway", journal: new([]string), answers: 1, counts: 1, err: errors.New("of 9 answers 3 were refusals")}
	_, err := testLab().measure(t.Context(), []*subject{f.subject("")}, 4)
	if err == nil || !strings.Contains(err.Error(), "the gateway: of 9 answers") {
		t.Errorf("got %v, want an error that names the gateway", err)
	}
}
