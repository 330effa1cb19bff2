package main

import (
	"strings"
	"testing"
)

// Work of others is what processors did beside what was started here: not what they
// idled, nor waited for the disk.
func TestOthers(t *testing.T) {
	before, err := parseTimes("cpu  100 0 50 1000 10 0 5 0 0 0\ncpu0 1 2 3 4 5 6 7 8 9\n")
	if err != nil {
		t.Fatal(err)
	}
	if want := (times{all: 1165 * tick, busy: 155 * tick}); before != want {
		t.Errorf("got %+v, want %+v", before, want)
	}
	after, err := parseTimes("cpu  160 0 70 1080 30 0 15 10 0 0\n")
	if err != nil {
		t.Fatal(err)
	}
	after.own = 60 * tick // of 100 that were busy, of 200
	if got := after.othersSince(before); got != 0.2 {
		t.Errorf("share: got %v, want 0.2", got)
	}
	if got := before.othersSince(before); got != 0 {
		t.Errorf("of no time: got %v, want 0", got)
	}
	for _, text := range []string{"", "cpu 1 2 3", "cpu0 1 2 3 4 5 6 7 8 9", "cpu a 2 3 4 5 6 7 8"} {
		if got, err := parseTimes(text); err == nil {
			t.Errorf("%q: got %+v, want an error", text, got)
		}
	}
}

// A table that was measured on a busy machine says so.
func TestReportOfABusyMachine(t *testing.T) {
	r := testReport()
	if strings.Contains(r.String(), "Other work") {
		t.Errorf("on a quiet machine: got\n%s", r)
	}
	r.Others = 0.456
	if want := "Other work took 46 % of the machine"; !strings.Contains(r.String(), want) {
		t.Errorf("got no %q in\n%s", want, r)
	}
}

// This machine can be asked.
func TestTimesNow(t *testing.T) {
	now, err := timesNow()
	if err != nil || now.all <= 0 || now.busy <= 0 || now.own > now.all {
		t.Errorf("got %+v, %v, want times", now, err)
	}
	if share := since()(); share < 0 || share > 1 {
		t.Errorf("share: got %v", share)
	}
}
