package storetest

import (
	"flag"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// Tests of broken stores wait only briefly, do not shrink or save failures, and use a fixed random
// seed, so that the machine finds each defect every time.
func TestMain(m *testing.M) {
	waitTimeout, overlap = 200*time.Millisecond, 20*time.Millisecond
	for name, value := range map[string]string{"rapid.nofailfile": "true", "rapid.shrinktime": "0s", "rapid.seed": "1", "rapid.checks": "500"} {
		if err := flag.Set(name, value); err != nil {
			panic(err)
		}
	}
	os.Exit(m.Run())
}

// fewerChecks makes the random cases of a test that expects no failure five times as short.
func fewerChecks(t *testing.T) {
	set := func(n string) {
		if err := flag.Set("rapid.checks", n); err != nil {
			t.Fatal(err)
		}
	}
	set("100")
	t.Cleanup(func() { set("500") })
}

// recorder is a testing.TB that records a failure instead of reporting it.
type recorder struct {
	testing.TB

	mu       sync.Mutex
	failed   bool
	log      []string
	cleanups []func()
}

// observe runs a case on a new store and returns its failure. A panic is a failure.
func observe(t *testing.T, c testCase, o Opened) *recorder {
	t.Helper()
	r := &recorder{TB: t}
	done := make(chan struct{})
	go func() { // FailNow ends the goroutine
		defer close(done)
		defer r.end()
		c.check(r, &o)
	}()
	<-done
	_ = o.Store.Close()
	return r
}

// end runs the cleanups after a case.
func (r *recorder) end() {
	if p := recover(); p != nil {
		r.Errorf("panic: %v", p)
	}
	for _, fn := range slices.Backward(r.cleanups) {
		fn()
	}
}

// text returns the first lines of the output of the case.
func (r *recorder) text() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	lines := strings.Split(strings.Join(r.log, "\n"), "\n")
	if len(lines) > 12 {
		lines = append(lines[:12:12], "…")
	}
	return strings.Join(lines, "\n\t")
}

func (r *recorder) note(failed bool, text string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failed = r.failed || failed
	r.log = append(r.log, text)
}

func (r *recorder) Log(args ...any)                   { r.note(false, fmt.Sprint(args...)) }
func (r *recorder) Logf(format string, args ...any)   { r.note(false, fmt.Sprintf(format, args...)) }
func (r *recorder) Error(args ...any)                 { r.note(true, fmt.Sprint(args...)) }
func (r *recorder) Errorf(format string, args ...any) { r.note(true, fmt.Sprintf(format, args...)) }
func (r *recorder) Fail()                             { r.note(true, "failed") }

func (r *recorder) Fatal(args ...any) {
	r.Error(args...)
	runtime.Goexit()
}

func (r *recorder) Fatalf(format string, args ...any) {
	r.Errorf(format, args...)
	runtime.Goexit()
}

func (r *recorder) FailNow() {
	r.Fail()
	runtime.Goexit()
}

func (r *recorder) Failed() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.failed
}

func (r *recorder) Cleanup(fn func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.cleanups = append(r.cleanups, fn)
}
