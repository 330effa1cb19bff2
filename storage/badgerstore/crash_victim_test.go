package badgerstore

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/badgerstore/internal/diskspace"
)

// victimEnv is the environment variable with the victimConfig of a test process that uses a store until it is killed.
const victimEnv = "BADGERSTORE_TEST_VICTIM"

func TestMain(m *testing.M) {
	diskspace.DefaultSize = MinMinFree // 32 MiB: tests copy directories
	if o := os.Getenv(victimEnv); o != "" {
		if err := runVictim(o); err != nil {
			fmt.Println("failed", err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// victimConfig configures a victim.
type victimConfig struct {
	Dir      string
	Round    int
	Power    bool
	Cache    int   // counters in memory
	Segment  int64 // bytes of a segment
	Crowd    bool  // create and delete users with many keys
	Requests bool  // make requests
	Expiring bool  // remove history

	Holds     bool // only open and end holds
	Events    bool // only write events of limits
	Feed      bool // only use, and write usage events
	Snapshots bool // make snapshots
	Refused   bool // go on when the store refuses a call

	Generation int // number of rounds with Expiring so far

	// The victim kills itself when it reaches the failpoint Step for the Count-th time; never when Count is 0.
	Step    failpoint
	Count   int64
	Opening bool // count Step only while the store is being opened; otherwise only afterwards
}

// runVictim opens a store and uses it from many goroutines. It writes a line before each request or change, and another
// line after the answer. A written line survives the kill, because it is in the pipe.
func runVictim(line string) error {
	var o victimConfig
	if err := json.Unmarshal([]byte(line), &o); err != nil {
		return err
	}
	var seen atomic.Int64
	var open atomic.Bool
	options := Options{CounterCache: o.Cache, segmentSize: o.Segment, ahead: o.Segment / 7, failpoint: func(at failpoint) {
		if at == o.Step && open.Load() != o.Opening && seen.Add(1) == o.Count {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {} // waits for the signal
		}
	}}
	if o.Power {
		options.Durability = Power
	}
	s, err := Open(o.Dir, stepped(options))
	if err != nil {
		return err
	}
	open.Store(true)
	fmt.Println("opened")
	if err := createFixture(s); err != nil {
		return err
	}
	if o.Holds {
		return runHolds(s)
	}
	if o.Events {
		return runEvents(s)
	}
	if o.Feed {
		return runFeed(s, o.Round)
	}
	w := traffic{s: s, recorder: printer{}, round: o.Round, crowd: o.Crowd, noRequests: !o.Requests, expiring: o.Expiring, generation: o.Generation, snapshots: o.Snapshots, refused: o.Refused}
	if o.Crowd {
		if err := w.removeCrowds(); err != nil {
			return err
		}
	}
	w.start()
	return w.wait()
}

// printer is a recorder that writes lines to the standard output.
type printer struct{}

func (printer) requesting(a testRequest) { fmt.Println("request", a) }
func (printer) answered(name string, o outcome, used int64) {
	fmt.Println("answer", name, o, used)
}
func (printer) creating(kind, name string) { fmt.Println("making", name, kind) }
func (printer) created(name string)        { fmt.Println("made", name) }
func (printer) deleting(name string)       { fmt.Println("deleting", name) }
func (printer) deleted(name string)        { fmt.Println("deleted", name) }

// recordLine decodes a line of a printer, and passes it to a recorder.
func recordLine(to recorder, line string) error {
	word, rest, _ := strings.Cut(line, " ")
	name, kind, _ := strings.Cut(rest, " ")
	switch word {
	case "request":
		a, err := parseRequest(rest)
		if err != nil {
			return fmt.Errorf("%q: %w", line, err)
		}
		to.requesting(a)
	case "answer":
		var o outcome
		var used int64
		if _, err := fmt.Sscan(kind, &o, &used); err != nil {
			return fmt.Errorf("%q: %w", line, err)
		}
		to.answered(name, o, used)
	case "making":
		to.creating(kind, name)
	case "made":
		to.created(name)
	case "deleting":
		to.deleting(name)
	case "deleted":
		to.deleted(name)
	default:
		return fmt.Errorf("victim: %q", line)
	}
	return nil
}

// removeCrowds deletes the users with many keys that an earlier victim has left.
func (w *traffic) removeCrowds() error {
	users, _, err := w.s.Users(context.Background(), acct, core.UserFilter{}, everything)
	if err != nil {
		return err
	}
	for _, u := range users {
		if strings.HasPrefix(u.Name, "crowd_") {
			if err := w.deleteUser(u); err != nil {
				return err
			}
		}
	}
	return nil
}

// TestVictimProtocol: recordLine decodes the encoded requests and answers of a victim.
func TestVictimProtocol(t *testing.T) {
	b := newModel()
	a := testRequest{name: "/r1/c2/3", key: "key_0", user: 1, shared: true, cost: 3, deny: true, id: "an id"}
	for _, a := range []testRequest{a, {name: "/r1/c2/4", key: "key_1", user: 2, cost: 1}} {
		if err := recordLine(b, fmt.Sprint("request ", a)); err != nil {
			t.Fatal(err)
		}
		if err := recordLine(b, fmt.Sprint("answer ", a.name, " ", denied, " ", 17)); err != nil {
			t.Fatal(err)
		}
		if got := b.requests[a.name]; got.testRequest != a || got.outcome != denied || got.used != 17 {
			t.Errorf("recordLine: got %+v, want %+v", got, a)
		}
	}
}
