package badgerstore

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// killsEnv is the environment variable with the number of kills; defaultKills without it.
const killsEnv = "LIMITKEEPER_KILLS"

const (
	defaultKills = 30
	maxLines     = 6000 // lines of output after which a victim is killed that has not reached its failpoint
)

// TestKill: a store survives many kills at any moment. Every answered request is counted once, and no other request. The
// usage in each answer is exact, and a repeated request id gets its first answer. Histories agree with counters, lists
// are complete, and deleted resources stay deleted.
func TestKill(t *testing.T) {
	k := newKillTest(t)
	for round := 0; round < k.want || len(k.missing()) > 0; round++ {
		if round == k.want+100 {
			t.Fatalf("no process was killed at %v: the test does not cover these phases", k.missing())
		}
		k.kill(round)
		k.check(round%5 == 0)
	}
	k.checkOrder()
	t.Log(k.totals())
}

// killTest runs processes that use one directory, and kills them.
type killTest struct {
	t       *testing.T
	dir     string
	want    int
	model   *model
	audit   *auditing
	phases  map[string]int // number of kills by phase
	opening int            // number of kills during opening

	generation int
}

func newKillTest(t *testing.T) *killTest {
	return &killTest{t: t, dir: t.TempDir(), want: wantedKills(t), model: newModel(), audit: newAuditing(), phases: map[string]int{}}
}

// wantedKills returns the number of kills of a test.
func wantedKills(t *testing.T) int {
	s := os.Getenv(killsEnv)
	if s == "" {
		return defaultKills
	}
	n, err := strconv.Atoi(s)
	if err != nil || n < 1 {
		t.Fatalf("%s: got %q, want a number of kills", killsEnv, s)
	}
	return n
}

// Phases that are not a failpoint.
const (
	fromOutside  = "from outside"
	whileOpening = ", opening"
)

// failpointNames are the names of the failpoints in the totals.
var failpointNames = [allFailpoints]string{failRotate: "rotate", failWrite: "write", failWritten: "written", failSynced: "synced",
	failCheckpoint: "checkpoint", failPages: "pages", failPagesWritten: "pages written", failMarked: "marked", failExpire: "expire",
	failReplay: "replay", failCommit: "commit", failCommitted: "committed", failSnapshot: "snapshot"}

// failpointCounts are the largest numbers of times that a victim reaches a failpoint before it kills itself there.
var failpointCounts = [allFailpoints]int64{failRotate: 5, failWrite: 300, failWritten: 300, failSynced: 200, failCheckpoint: 12, failPages: 12,
	failPagesWritten: 12, failMarked: 12, failExpire: 4, failReplay: 20, failCommit: 60, failCommitted: 60, failSnapshot: 8}

// missing returns the phases without a kill so far.
func (k *killTest) missing() (list []string) {
	for at, name := range failpointNames {
		if failpoint(at) == failReplay {
			name += whileOpening
		}
		list = append(list, name)
	}
	list = append(list, fromOutside, failpointNames[failCommit]+whileOpening)
	return slices.DeleteFunc(list, func(phase string) bool { return k.phases[phase] > 0 })
}

// kill runs a victim until it is killed. It prefers a phase without a kill so far.
func (k *killTest) kill(round int) {
	o := victimConfig{Dir: k.dir, Round: round, Requests: true, Power: rand.IntN(2) == 0, Crowd: rand.IntN(10) == 0,
		Segment: 16<<10 + rand.Int64N(48<<10), Cache: []int{1, 100_000}[rand.IntN(2)]}
	phase := fromOutside
	if list := k.missing(); len(list) > 0 && round > 0 {
		phase = list[rand.IntN(len(list))]
	} else if rand.IntN(8) > 0 {
		phase = failpointNames[rand.IntN(int(allFailpoints))]
	}
	lines := maxLines
	if phase == fromOutside {
		lines = rand.IntN(4000)
	}
	if phase == failpointNames[failCommit]+whileOpening { // leaves a large transaction that the next victim has to replay
		k.run(victimConfig{Dir: k.dir, Round: -round, Crowd: true, Segment: o.Segment, Step: failCommitted, Count: 2 + rand.Int64N(20)}, maxLines)
		o.Count = 1 + rand.Int64N(3)
	}
	o.Opening = strings.HasSuffix(phase, whileOpening)
	o.Step = failpoint(max(0, slices.Index(failpointNames[:], strings.TrimSuffix(phase, whileOpening))))
	switch {
	case phase == fromOutside:
	case o.Count == 0:
		o.Count = 1 + rand.Int64N(failpointCounts[o.Step])
	}
	o.Snapshots = o.Step == failSnapshot || rand.IntN(4) == 0
	if o.Step == failSynced {
		o.Power = true
	}
	if o.Step == failExpire || o.Step == failRotate {
		o.Segment = 16 << 10
	}
	if o.Step == failExpire || rand.IntN(6) == 0 {
		o.Expiring = true
		k.generation++
	}
	k.model.expiring, o.Generation = o.Expiring, k.generation
	k.run(o, lines)
}

// run runs a victim, and kills it after some lines of output unless the victim kills itself before. It records the
// requests and answers in the model.
func (k *killTest) run(o victimConfig, lines int) {
	k.t.Helper()
	k.model.restart()
	line, err := json.Marshal(o)
	if err != nil {
		k.t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), victimEnv+"="+string(line))
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		k.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		k.t.Fatal(err)
	}
	opened, outside := false, false
	output := bufio.NewReader(out)
	for n := 0; ; n++ {
		if n == lines {
			_ = cmd.Process.Kill()
			outside = true
		}
		line, err := output.ReadString('\n')
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			k.t.Fatalf("read from the victim: %v", err)
		}
		if line = strings.TrimSuffix(line, "\n"); line == "opened" {
			opened = true
		} else if err := recordLine(k.model, line); err != nil {
			k.t.Errorf("%+v: %v", o, err)
		}
	}
	if err := cmd.Wait(); err == nil || cmd.ProcessState.ExitCode() != -1 {
		k.t.Fatalf("victim %+v: got %v, want it killed", o, err)
	}
	k.recordKill(o, opened, outside)
	k.model.crash(true)
}

// recordKill counts the kill of a victim by its phase.
func (k *killTest) recordKill(o victimConfig, opened, outside bool) {
	phase := failpointNames[o.Step]
	if outside {
		phase = fromOutside
	}
	if !opened {
		phase += whileOpening
		k.opening++
	}
	k.phases[phase]++
}

// check compares a copy of the directory with the model. The next victim opens the directory itself.
func (k *killTest) check(again bool) {
	k.t.Helper()
	dir, err := os.MkdirTemp(k.t.TempDir(), "")
	if err != nil {
		k.t.Fatal(err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	copyDatabase(k.t, dir, k.dir)
	copyEventLog(k.t, dir, k.dir)
	s, err := open(dir, Options{Logger: quiet.Logger, CounterCache: []int{1, 0}[rand.IntN(2)]})
	if err != nil {
		k.t.Fatalf("open after %s: %v", k.totals(), err)
	}
	k.wantConsistent(s, "after the kill")
	k.repeatRequests(s)
	if err := s.Close(); err != nil {
		k.t.Errorf("Close: %v", err)
	}
	if again {
		if s, err = open(dir, quiet); err != nil {
			k.t.Fatalf("open again: %v", err)
		}
		k.wantConsistent(s, "opened again")
		if err := s.Close(); err != nil {
			k.t.Errorf("Close: %v", err)
		}
	}
	if k.t.Failed() {
		k.t.FailNow()
	}
}

// wantConsistent fails if a store differs from the model, or its audit finds a problem.
func (k *killTest) wantConsistent(s *Store, when string) {
	k.t.Helper()
	for _, problem := range append(k.model.check(s), k.audit.audit(s)...) {
		k.t.Errorf("%s, %s: %s", k.totals(), when, problem)
	}
}

// repeatRequests repeats some counted requests with their request ids. They must get their first answers.
func (k *killTest) repeatRequests(s *Store) {
	k.t.Helper()
	left := 10
	for id, first := range k.model.ids {
		if left--; left < 0 {
			return
		}
		var n int
		if _, err := fmt.Sscanf(id[0], "key_%d", &n); err != nil {
			k.t.Fatal(err)
		}
		c := request(id[0], int64(n%2+1), 0, noon.Add(time.Hour))
		c.RequestID = id[1]
		v, err := s.Consume(context.Background(), c)
		if err != nil || v.FirstTerms == nil || !v.Allowed || v.Usage.Used != first.used {
			k.t.Errorf("repeated %v, counted as %+v: got %+v, %v", id, first, v, err)
		}
	}
}

// checkOrder checks the order of all entries of every history.
func (k *killTest) checkOrder() {
	k.t.Helper()
	s, err := open(k.dir, Options{Logger: quiet.Logger})
	if err != nil {
		k.t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	for of, h := range k.model.histories {
		list, total, err := s.History(context.Background(), of, time.Time{}, everything)
		if err != nil || total != len(list) || int64(total) != h.entries-h.gone {
			k.t.Errorf("history of %v: got %d of %d entries, %v, want %d", of, len(list), total, err, h.entries-h.gone)
			continue
		}
		for i, e := range slices.Backward(list) {
			if want := h.order[len(h.order)-1-i]; e.Endpoint != want {
				k.t.Errorf("history of %v: entry %d: got %s, want %s", of, len(list)-i, e.Endpoint, want)
				break
			}
		}
	}
}

// totals describes the kills and requests so far.
func (k *killTest) totals() string {
	kills, text := 0, ""
	for _, phase := range slices.Sorted(maps.Keys(k.phases)) {
		kills += k.phases[phase]
		text += fmt.Sprintf("; %s %d", phase, k.phases[phase])
	}
	return fmt.Sprintf("%d kills, %d requests sent, %d answered, %d counted, %d changes answered%s",
		kills, k.model.totals["sent"], k.model.totals["answered"], k.model.totals["counted"], k.model.totals["changes"], text)
}
