package e2e

import (
	"context"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// paced calls fn rate times a second on average, with the time at which each call is due,
// until ctx ends, and waits for the calls. The times between calls are random (a Poisson
// process), so that loads which begin together do not keep striking together. While most
// calls run it starts no others.
func paced(ctx context.Context, rate, most int, fn func(n int, due time.Time)) {
	var running sync.WaitGroup
	defer running.Wait()
	room := make(chan struct{}, most)
	last := time.Now()
	for n := 0; ; n++ {
		due := last.Add(time.Duration(rand.ExpFloat64() * float64(time.Second) / float64(rate)))
		if now := time.Now(); due.Before(now.Add(-time.Second)) {
			due = now // calls that are late by more than a second are left out
		}
		last = due
		select {
		case <-ctx.Done():
			return
		case <-time.After(time.Until(due)):
		}
		select {
		case <-ctx.Done():
			return
		case room <- struct{}{}:
			running.Go(func() {
				defer func() { <-room }()
				fn(n, due)
			})
		}
	}
}

// phase is a time of honest load, alone or with attacks.
type phase struct {
	mu                     sync.Mutex
	took                   []time.Duration        // of honest requests
	signIns                []time.Duration        // of the honest owner
	answers                map[string]map[int]int // of attacks, by name and status
	server, own, attackers time.Duration          // processor time
	lasted                 time.Duration
	footprint              // at its end
}

// quantile returns the latency that the share q of the requests does not exceed.
func quantile(took []time.Duration, q float64) time.Duration {
	if len(took) == 0 {
		return 0
	}
	slices.Sort(took)
	return took[min(len(took)-1, int(q*float64(len(took))))]
}

// footprint is what the server takes of the machine.
type footprint struct {
	cpu        time.Duration
	peak, data int64 // bytes: most memory since the footprint before, and of the data directory
	files      int   // that are open, sockets among them
}

// footprint reads /proc and the data directory, and begins another peak.
func (h *hostileSite) footprint() (f footprint) {
	h.t.Helper()
	must := func(b []byte, err error) string {
		if err != nil {
			h.t.Fatal(err)
		}
		return string(b)
	}
	proc := fmt.Sprintf("/proc/%d/", h.pid)
	stat := must(os.ReadFile(proc + "stat"))
	for _, ticks := range strings.Fields(stat[strings.LastIndexByte(stat, ')'):])[12:14] { // utime and stime, in units of 10 ms
		n, err := strconv.Atoi(ticks)
		must(nil, err)
		f.cpu += time.Duration(n) * 10 * time.Millisecond
	}
	_, peak, _ := strings.Cut(must(os.ReadFile(proc+"status")), "VmHWM:")
	_, err := fmt.Sscan(peak, &f.peak)
	must(nil, err)
	f.peak <<= 10
	must(nil, os.WriteFile(proc+"clear_refs", []byte("5"), 0))
	open, err := os.ReadDir(proc + "fd")
	must(nil, err)
	f.files = len(open)
	f.data, err = allocated(filepath.Join(h.dir, "data"))
	must(nil, err)
	return f
}

// allocated returns how many bytes the files below a directory take on the disk.
func allocated(dir string) (sum int64, err error) {
	err = filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil { // it was removed meanwhile
			return nil
		}
		sum += info.Sys().(*syscall.Stat_t).Blocks * 512
		return nil
	})
	return sum, err
}

// ownCPU returns the processor time of the load generators.
func ownCPU() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// run runs the honest load for a time, with attacks at a part of their rates.
func (h *hostileSite) run(t *testing.T, lasts time.Duration, part int, as ...attack) *phase {
	t.Helper()
	p := &phase{lasted: lasts}
	before := h.footprint()
	own := ownCPU()
	ctx, cancel := context.WithCancel(t.Context()) // a dialer would end at a deadline a moment before ctx does
	defer time.AfterFunc(lasts, cancel).Stop()
	var loads sync.WaitGroup
	loads.Go(func() {
		paced(ctx, honestRate, 64, func(n int, due time.Time) { p.note(&p.took, h.request(n, due)) })
	})
	loads.Go(func() {
		paced(ctx, 1, 1, func(_ int, due time.Time) { p.note(&p.signIns, h.signIn(due)) })
	})
	o := order{Part: part, Lasts: lasts}
	for _, a := range as {
		o.Attacks = append(o.Attacks, a.name)
	}
	r, err := h.attackers.attack(o)
	if err != nil {
		t.Fatal(err)
	}
	<-ctx.Done()
	p.footprint = h.footprint()
	p.answers, p.attackers = r.Answers, r.CPU
	p.server, p.own = p.cpu-before.cpu, ownCPU()-own
	loads.Wait()
	return p
}

// add adds another phase of the same kind.
func (p *phase) add(o *phase) {
	p.took, p.signIns = append(p.took, o.took...), append(p.signIns, o.signIns...)
	p.server, p.own, p.attackers, p.lasted = p.server+o.server, p.own+o.own, p.attackers+o.attackers, p.lasted+o.lasted
	o.peak = max(o.peak, p.peak)
	p.footprint = o.footprint
	if p.answers == nil {
		p.answers = map[string]map[int]int{}
	}
	for name, statuses := range o.answers {
		if p.answers[name] == nil {
			p.answers[name] = map[int]int{}
		}
		for status, n := range statuses {
			p.answers[name][status] += n
		}
	}
}

func (p *phase) note(to *[]time.Duration, took time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	*to = append(*to, took)
}

// share returns a part of the processors.
func (p *phase) share(cpu time.Duration) float64 {
	return 100 * float64(cpu) / float64(p.lasted) / float64(runtime.NumCPU())
}

func (p *phase) String() string {
	return fmt.Sprintf("%d requests, p50 %v, p99 %v, %d sign-ins, p50 %v; CPU %.0f %% server, %.0f %% honest load, %.0f %% attackers; memory %d MiB, data %d KiB, %d open files",
		len(p.took), quantile(p.took, .5).Round(10*time.Microsecond), quantile(p.took, .99).Round(10*time.Microsecond),
		len(p.signIns), quantile(p.signIns, .5).Round(time.Millisecond), p.share(p.server), p.share(p.own), p.share(p.attackers),
		p.peak>>20, p.data>>10, p.files)
}
