package badgerstore

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dgraph-io/badger/v4"
	"github.com/limitkeeper/limitkeeper/storage/badgerstore/internal/reserve"
)

// outage is a store whose power is cut again and again. The event log is on a disk that loses bytes that were not
// synced. The write-ahead logs of Badger are never synced, and are damaged at random. The tables and the MANIFEST,
// which Badger syncs, survive.
type outage struct {
	t        *testing.T
	random   *rand.Rand
	expected Durability // what is held against the store
	options  Options    // what it is opened with
	broken   bool       // nothing is synced

	model *model
	dir   string
	disk  *lossyDisk
	s     *Store
	round int

	target       string     // where the power is to be cut, "" for anywhere
	targetEvents int        // how often something happens there until then
	maxEvents    int        // how often anything does at most
	after        string     // the directory after the cut
	left         *lossyDisk // the disk after it
	where        string     // it came

	cuts map[string]int
}

func newOutage(t *testing.T, d Durability) *outage {
	o := &outage{t: t, random: rand.New(rand.NewPCG(rand.Uint64(), 0)), expected: d, options: Options{Durability: d, Logger: quiet.Logger, memtable: smallMemtable},
		model: newModel(), dir: t.TempDir(), disk: newLossyDisk(), cuts: map[string]int{}}
	o.mustOpen()
	if err := firstOf(createFixture(o.s), o.s.syncAll()); err != nil {
		t.Fatal(err)
	}
	return o
}

// open opens the store, on the disk and in the directory that are there.
func (o *outage) open() error {
	o.disk.broken = o.broken
	o.disk.before = func(int) { o.event(diskChanges) }
	options := o.disk.options(o.options)
	options.segmentSize = 4<<10 + int64(o.random.IntN(16<<10))
	options.ahead = int64(o.random.IntN(8 << 10))
	options.CounterCache = []int{1, 100_000}[o.random.IntN(2)]
	options.flushBytes = int64(1 + o.random.IntN(32<<10))
	options.failpoint = func(at failpoint) {
		o.disk.mu.Lock()
		defer o.disk.mu.Unlock()
		o.event(failpointNames[at])
	}
	s, err := open(o.dir, stepped(options))
	o.s = s
	if err == nil && o.model.expiring { // as the background does: a cut may bring back what was removed
		err = s.expire(time.Now().AddDate(1, 0, 0))
	}
	return err
}

func (o *outage) mustOpen() {
	o.t.Helper()
	if err := o.open(); err != nil {
		o.t.Fatalf("round %d: open: %v", o.round, err)
	}
}

// event cuts the power if it is time to. Whoever calls it holds the lock of the disk,
// without which nothing comes to it.
func (o *outage) event(where string) {
	if o.left != nil || o.maxEvents == 0 {
		return
	}
	if o.maxEvents--; o.target == "" || o.target == where {
		o.targetEvents--
	}
	if o.targetEvents > 0 && o.maxEvents > 0 {
		return
	}
	o.model.crash(o.expected == Power)
	o.where, o.after, o.left = where, o.t.TempDir(), o.disk.cut(o.random)
	o.copyDatabase()
	o.left = o.left.at(filepath.Join(o.after, eventLogDir))
}

// copyDatabase copies the files of badger as a power cut leaves them. It may be making
// tables at the moment: then it is tried again.
func (o *outage) copyDatabase() {
	for range 100 {
		before := o.listing()
		for _, suffix := range []string{logSuffix, ""} { // what is in a log may go to a table meanwhile
			for name := range before {
				if filepath.Ext(name) == suffix || suffix == "" && filepath.Ext(name) != logSuffix {
					o.copyFile(name)
				}
			}
		}
		if after := o.listing(); fmt.Sprint(before) == fmt.Sprint(after) {
			return
		}
	}
	o.t.Error("the files of badger change all the time")
}

// listing returns the files of badger, and the content of that which says what tables
// there are.
func (o *outage) listing() map[string]string {
	files := map[string]string{}
	list, err := os.ReadDir(o.dir)
	if err != nil {
		o.t.Error(err)
	}
	for _, file := range list {
		if file.Type().IsRegular() && file.Name() != "LOCK" && file.Name() != reserve.Name {
			files[file.Name()] = ""
		}
	}
	manifest, err := os.ReadFile(filepath.Join(o.dir, badger.ManifestFilename))
	if err != nil {
		o.t.Error(err)
	}
	files[badger.ManifestFilename] = string(manifest)
	return files
}

// copyFile copies a file of badger; a log as chance leaves it: whole, empty, cut, with a page of
// zeros, or not at all.
func (o *outage) copyFile(name string) {
	from, to := filepath.Join(o.dir, name), filepath.Join(o.after, name)
	b, err := os.ReadFile(from)
	if errors.Is(err, os.ErrNotExist) {
		return
	}
	at, how := o.random.IntN(len(b)+1), 4
	if filepath.Ext(name) == logSuffix {
		how = o.random.IntN(5)
	}
	switch how {
	case 0:
		return
	case 1:
		b = b[:0]
	case 2:
		b = b[:at]
	case 3:
		clear(b[at:min(at+4096, len(b))])
	}
	if err := firstOf(err, os.WriteFile(to, b, 0o600)); err != nil {
		o.t.Error(err)
	}
}

// scheduleCut lets the power be cut soon, at a certain kind of moment or at any.
func (o *outage) scheduleCut() {
	o.disk.mu.Lock()
	defer o.disk.mu.Unlock()
	o.left, o.target, o.maxEvents = nil, "", 6000
	o.targetEvents = 1 + o.random.IntN(600)
	if kind := o.random.IntN(2 * len(cutPoints)); kind < len(cutPoints) {
		o.target, o.targetEvents = cutPoints[kind].where, 1+o.random.IntN(cutPoints[kind].maxEvents)
	}
}

// cutPoints are the moments at which the power is cut, and the how manyeth of them it is
// at most.
var cutPoints = []struct {
	where     string
	maxEvents int
}{
	{failpointNames[failRotate], 3}, {failpointNames[failWritten], 200}, {failpointNames[failPages], 5}, {failpointNames[failPagesWritten], 5}, {failpointNames[failMarked], 5},
	{failpointNames[failCommit], 30}, {failpointNames[failCommitted], 30}, {diskChanges, 100},
}

// diskChanges is a moment that is not a step.
const diskChanges = "a change of the disk"

// isCut reports whether the power was cut.
func (o *outage) isCut() bool {
	o.disk.mu.Lock()
	defer o.disk.mu.Unlock()
	return o.left != nil
}

// cut lets the store be used until the power is cut, perhaps only once it was opened
// again, and returns what is wrong with what is left.
func (o *outage) cut() []string {
	o.t.Helper()
	o.round++
	o.model.restart()
	if o.random.IntN(4) == 0 {
		o.killAndScheduleCut()
	} else {
		o.scheduleCut()
	}
	o.use(o.isCut)
	o.cuts[o.where]++
	abandon(o.t, o.s)
	_ = os.RemoveAll(o.dir)
	o.dir, o.disk = o.after, o.left
	o.left, o.maxEvents = nil, 0
	if err := o.open(); err != nil {
		return []string{fmt.Sprintf("the store does not open: %v", err)}
	}
	return o.problems()
}

// killAndScheduleCut kills the process, when it has left something that is to be read when the
// store is opened, and lets the power be cut soon after that was begun.
func (o *outage) killAndScheduleCut() {
	var requests atomic.Int64
	o.use(func() bool { return requests.Add(1) > 200 })
	o.round++
	abandon(o.t, o.s)
	o.scheduleCut()
	o.target, o.targetEvents = "", 1+o.random.IntN(100)
	o.mustOpen()
}

// kill does so with a store whose process is killed: everything is in the files, and on
// the disk soon after.
func (o *outage) kill() []string {
	o.t.Helper()
	o.round++
	o.model.restart()
	var requests atomic.Int64
	o.use(func() bool { return requests.Add(1) > 300 })
	o.model.crash(true)
	abandon(o.t, o.s)
	o.mustOpen()
	if err := o.s.syncAll(); err != nil {
		o.t.Fatal(err)
	}
	return o.problems()
}

func (o *outage) problems() []string {
	return append(o.model.check(o.s), audit(o.s)...)
}

// use makes requests and changes until it is over. What was answered before everything
// was synced is safe then.
func (o *outage) use(over func() bool) {
	o.t.Helper()
	w := traffic{s: o.s, recorder: o.model, round: o.round}
	w.beforeRequest = func() error {
		if over() {
			w.stop()
		}
		if rand.IntN(50) > 0 {
			return nil
		}
		safe := o.model.snapshotAnswers()
		err := o.s.syncAll()
		safe()
		return err
	}
	w.start()
	if err := w.wait(); err != nil {
		o.t.Fatalf("round %d: %v", o.round, err)
	}
}

const powerCuts = 25

// TestPowerCut: after a power cut everything is there that the durability promises:
// with Power what was answered, with Process what was answered before all was last
// brought to the disk. Whatever else came to the disk, in whatever order, the store
// opens, counters and histories agree, and counting goes on.
func TestPowerCut(t *testing.T) {
	t.Parallel()
	for _, d := range []Durability{Process, Power} {
		t.Run(d.String(), func(t *testing.T) {
			o := newOutage(t, d)
			for range powerCuts {
				problems := o.cut()
				if o.random.IntN(5) == 0 {
					problems = append(problems, o.kill()...)
				}
				for _, problem := range problems {
					t.Errorf("cut %d, at %s: %s", o.round, o.where, problem)
				}
				if t.Failed() {
					return
				}
			}
			abandon(t, o.s)
			t.Logf("%d cuts: %v; %v", powerCuts, o.cuts, o.model.totals)
		})
	}
}

// TestPowerCutIsNoticed: a store that does not do what it promises is found out: the
// test of power cuts would be no proof.
func TestPowerCutIsNoticed(t *testing.T) {
	t.Parallel()
	for name, breaks := range map[string]func(*outage){
		"nothing is synced":        func(o *outage) { o.broken = true },
		"process instead of power": func(o *outage) { o.options.Durability = Process },
	} {
		t.Run(name, func(t *testing.T) {
			for try := range 20 {
				o := newOutage(t, Power)
				abandon(t, o.s)
				breaks(o)
				o.mustOpen()
				problems := strings.Join(o.cut(), "\n")
				if o.s != nil {
					abandon(t, o.s)
				}
				if problems != "" { // TestPowerCut fails at any problem
					t.Logf("try %d: %s", try+1, oneLineOf(problems))
					return
				}
			}
			t.Error("no problem is found: the test does not notice the loss")
		})
	}
}

// oneLineOf returns a text up to its first line break.
func oneLineOf(s string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(s), "\n")
	return line
}
