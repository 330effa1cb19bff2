package e2e

import (
	"net/http"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"testing"
	"time"
)

// hostileWanted says how long TestHostile attacks, such as 1h, when it is to be longer than
// on every change. Then latencies are asserted, too.
const hostileWanted = "LIMITKEEPER_HOSTILE"

const (
	hostileEachTime = 15 * time.Second
	hostileMost     = 24 * time.Hour
	hostileRound    = 30 * time.Second
	honestRate      = 100 // requests a second
	togetherPart    = 8   // all attacks together have an eighth of their rates, which is 200 requests a second

	memoryLimit = "384MiB"  // GOMEMLIMIT of the server, which has GOGC=off and twice as many threads as processors: see docs/security.md
	memoryBound = 512 << 20 // bytes of memory that the server may take with it, at any time

	// The data directory grows by these bytes at most.
	honestEntry = 128       // for an honest request, in the history
	denialEntry = 512       // for a denial, whatever its path
	otherData   = 256 << 10 // for the rest, and as much again for each minute
	segmentMiB  = 64        // the file of the event log that is being written, beside max_history
)

// While others attack, an honest account is served as before: none of its requests fails,
// each is counted once, the latency of 99 % at most doubles, and memory and disk stay
// bounded. When this fails, one client without a key, or one customer, takes the service
// down for all.
func TestHostile(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("reads /proc")
	}
	lasts, part := hostileEachTime, 5
	wanted, long := os.LookupEnv(hostileWanted)
	if long {
		var err error
		if lasts, err = time.ParseDuration(wanted); err != nil || lasts <= 0 || lasts > hostileMost {
			t.Fatalf("%s=%s: want a duration of at most %v (%v)", hostileWanted, wanted, hostileMost, err)
		}
		part = 1
	}
	defer debug.SetGCPercent(debug.SetGCPercent(800)) // the honest load shares the processors with the server
	h := newHostileSite(t)
	began := time.Now()
	before := h.footprint()
	h.checkDenials()
	alone := lasts * 2 / 3 / time.Duration(len(attacks))
	for _, a := range attacks {
		t.Run(a.name, func(t *testing.T) { h.under(t, alone, part, long, a) })
	}
	t.Run("together", func(t *testing.T) { h.under(t, lasts/3, part*togetherPart, long, attacks...) })
	if used, _ := h.used(h.key); used != h.allowed.Load() {
		t.Errorf("the honest key has used %d, want the %d requests that were allowed", used, h.allowed.Load())
	}
	after := h.footprint()
	entries := min(honestEntry*h.allowed.Load()+denialEntry*h.denials, (maxHistory+segmentMiB)<<20)
	bound := entries + otherData*int64(1+time.Since(began)/time.Minute)
	t.Logf("the data directory grew by %d KiB, want at most %d", (after.data-before.data)>>10, bound>>10)
	if grew := after.data - before.data; grew > bound {
		t.Errorf("the data directory grew by %d bytes with %d honest requests and %d denials, want at most %d",
			grew, h.allowed.Load(), h.denials, bound)
	}
}

// checkDenials holds the bytes of denials with long paths to a bound. The honest request
// after them has them written.
func (h *hostileSite) checkDenials() {
	h.t.Helper()
	const denials = 400 // 8 of each key: all are recorded
	before := h.footprint().data
	for range denials {
		if status, err := longDenial(&h.target, h.t.Context()); status != http.StatusTooManyRequests {
			h.t.Fatalf("a denial: got %d (%v)", status, err)
		}
	}
	h.denials += denials
	h.request(0, time.Now())
	if grew, bound := h.footprint().data-before, int64(denials*denialEntry+otherData/2); grew > bound {
		h.t.Errorf("the data directory grew by %d bytes with %d denials, want at most %d", grew, denials, bound)
	}
}

// under compares a quarter of the time without attacks to the rest with them, in rounds.
// Each round begins with a moment for the work that the attacks before have left behind.
func (h *hostileSite) under(t *testing.T, lasts time.Duration, part int, long bool, as ...attack) {
	var quiet, loud phase
	var ratios []float64
	rounds := 1 + lasts/hostileRound/2*2 // an odd number has a median
	for lasts /= rounds; len(ratios) < int(rounds); {
		h.run(t, lasts/20, part)
		q := h.run(t, lasts/4, part)
		l := h.run(t, lasts*7/10, part, as...)
		ratios = append(ratios, float64(quantile(l.took, .99))/float64(quantile(q.took, .99)))
		quiet.add(q)
		loud.add(l)
	}
	slices.Sort(ratios)
	ratio := ratios[len(ratios)/2]
	h.denials += int64(loud.answers["denials"][http.StatusTooManyRequests])
	t.Logf("\nalone:    %v\nattacked: %v\nanswers: %v; p99 ratio of %d rounds: %.2f", &quiet, &loud, loud.answers, rounds, ratio)
	if faults := h.takeFaults(); len(faults) > 0 {
		t.Errorf("%d of %d honest requests failed, such as: %s", len(faults), len(quiet.took)+len(loud.took)+len(loud.signIns), faults[0])
	}
	if long && ratio > 2 {
		t.Errorf("p99: got %.2f times as long as without the attack, want at most 2", ratio)
	}
	for _, a := range as {
		for status, n := range loud.answers[a.name] {
			if !slices.Contains(a.answers, status) {
				t.Errorf("%s: got the status %d %d times, want one of %v", a.name, status, n, a.answers)
			}
		}
		if len(loud.answers[a.name]) == 0 && long {
			t.Errorf("%s: got no answer: the attack was not tried", a.name)
		}
	}
	if loud.peak > memoryBound {
		t.Errorf("got %d MiB of memory, want at most %d", loud.peak>>20, memoryBound>>20)
	}
}
