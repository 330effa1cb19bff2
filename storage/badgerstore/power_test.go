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

	"github.com/limitkeeper/limitkeeper/storage/badgerstore/internal/table"
)

// outage is a store whose power is cut again and again. The event log is on a disk that loses bytes that were not
// synced. The write-ahead logs of Badger are never synced, and are damaged at random. The tables and the MANIFEST,
// which Badger syncs, survive.
type outage struct {
	t        *testing.T
	random   *rand.Rand
	expected Durability // the durability that the test checks
	options  Options    // the options of Open
	broken   bool       // syncs do nothing

	model *model
	dir   string
	disk  *lossyDisk
	s     *Store
	round int

	target       string     // the place of the next cut, "" for any place
	targetEvents int        // events at the target until the cut
	maxEvents    int        // events at any place until the cut
	after        string     // the directory after the cut
	left         *lossyDisk // the disk after the cut
	where        string     // the place of the last cut

	cuts map[string]int
}

func newOutage(t *testing.T, d Durability) *outage {
	o := &outage{t: t, random: rand.New(rand.NewPCG(rand.Uint64(), 0)), expected: d, options: Options{Durability: d, Logger: quiet.Logger, memtable: smallMemtable},
		model: newModel(), dir: t.TempDir(), disk: newLossyDisk(), cuts: map[string]int{}}
	o.mustOpen()
	if err := firstOf(createFixture(o.s), o.s.syncEvents()); err != nil {
		t.Fatal(err)
	}
	return o
}

// open opens the store on the current disk and directory, with random options.
func (o *outage) open() error {
	o.disk.broken = o.broken
	o.disk.before = func(int) { o.event(diskChanges) }
	options := o.disk.options(o.options)
	options.segmentSize = 4<<10 + int64(o.random.IntN(16<<10))
	options.ahead = int64(o.random.IntN(8 << 10))
	options.CounterCache = []int{1, 100_000}[o.random.IntN(2)]
	options.pagesEvery = int64(1 + o.random.IntN(512<<10))
	options.failpoint = func(at failpoint) {
		o.disk.mu.Lock()
		defer o.disk.mu.Unlock()
		o.event(failpointNames[at])
	}
	s, err := open(o.dir, stepped(options))
	o.s = s
	if err == nil && o.model.expiring { // as the background does: a cut may bring back removed segments
		err = s.removeHistory(time.Now().AddDate(1, 0, 0))
	}
	return err
}

func (o *outage) mustOpen() {
	o.t.Helper()
	if err := o.open(); err != nil {
		o.t.Fatalf("round %d: open: %v", o.round, err)
	}
}

// event counts an event at a place, and cuts the power at the chosen event. The caller holds the lock of the disk, so no
// other write reaches the disk.
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
	o.left = o.left.at(o.dir, o.after)
}

// copyDatabase copies the files of Badger as a power cut leaves them. It tries again when Badger changes its tables
// during the copy.
func (o *outage) copyDatabase() {
	for range 100 {
		before := o.listing()
		for _, suffix := range []string{table.LogSuffix, ""} { // logs first: Badger may write a log to a table during the copy
			for name := range before {
				if filepath.Ext(name) == suffix || suffix == "" && filepath.Ext(name) != table.LogSuffix {
					o.copyFile(name)
				}
			}
		}
		if after := o.listing(); fmt.Sprint(before) == fmt.Sprint(after) {
			return
		}
	}
	o.t.Error("the files of Badger never stop changing")
}

// listing returns the names of Badger's files, and the content of MANIFEST, which lists the tables.
func (o *outage) listing() map[string]string {
	files := map[string]string{}
	for _, sub := range []string{databaseDir, imagesDir} {
		list, err := os.ReadDir(filepath.Join(o.dir, sub))
		if err := errors.Join(err, os.MkdirAll(filepath.Join(o.after, sub), 0o700)); err != nil {
			o.t.Error(err)
		}
		for _, file := range list {
			files[filepath.Join(sub, file.Name())] = ""
		}
	}
	manifest, err := os.ReadFile(filepath.Join(databaseIn(o.dir), badger.ManifestFilename))
	if err != nil {
		o.t.Error(err)
	}
	files[filepath.Join(databaseDir, badger.ManifestFilename)] = string(manifest)
	return files
}

// copyFile copies a file of Badger. It leaves a log unchanged, empty, cut, with a page of zeros, or missing, at random.
func (o *outage) copyFile(name string) {
	from, to := filepath.Join(o.dir, name), filepath.Join(o.after, name)
	b, err := os.ReadFile(from)
	if errors.Is(err, os.ErrNotExist) {
		return
	}
	at, damage := o.random.IntN(len(b)+1), 4
	if filepath.Ext(name) == table.LogSuffix {
		damage = o.random.IntN(5)
	}
	switch damage {
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

// scheduleCut chooses a random event for the next power cut, at a random place or at any place.
func (o *outage) scheduleCut() {
	o.disk.mu.Lock()
	defer o.disk.mu.Unlock()
	o.left, o.target, o.maxEvents = nil, "", 6000
	o.targetEvents = 1 + o.random.IntN(600)
	if kind := o.random.IntN(2 * len(cutPoints)); kind < len(cutPoints) {
		o.target, o.targetEvents = cutPoints[kind].where, 1+o.random.IntN(cutPoints[kind].maxEvents)
	}
}

// cutPoints are the places of power cuts, each with the largest number of events until the cut.
var cutPoints = []struct {
	where     string
	maxEvents int
}{
	{failpointNames[failRotate], 3}, {failpointNames[failWritten], 200}, {failpointNames[failPages], 5}, {failpointNames[failPagesWritten], 5}, {failpointNames[failMarked], 5},
	{failpointNames[failCommit], 30}, {failpointNames[failCommitted], 30}, {failpointNames[failSnapshot], 8}, {diskChanges, 100},
}

// diskChanges is a place that is not a failpoint.
const diskChanges = "a change of the disk"

// isCut reports whether the power was cut.
func (o *outage) isCut() bool {
	o.disk.mu.Lock()
	defer o.disk.mu.Unlock()
	return o.left != nil
}

// cut uses the store until a power cut, opens the store that is left, and returns its problems. In one of four calls, it
// cuts the power after a kill and another start.
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

// killAndScheduleCut uses the store, kills the process, and starts the store again, with a power cut soon after the start
// of the replay.
func (o *outage) killAndScheduleCut() {
	var requests atomic.Int64
	o.use(func() bool { return requests.Add(1) > 200 })
	o.round++
	abandon(o.t, o.s)
	o.scheduleCut()
	o.target, o.targetEvents = "", 1+o.random.IntN(100)
	o.mustOpen()
}

// kill uses the store, kills its process, and returns the problems of the store that is left. A kill loses no bytes.
func (o *outage) kill() []string {
	o.t.Helper()
	o.round++
	o.model.restart()
	var requests atomic.Int64
	o.use(func() bool { return requests.Add(1) > 300 })
	o.model.crash(true)
	abandon(o.t, o.s)
	o.mustOpen()
	if err := o.s.syncEvents(); err != nil {
		o.t.Fatal(err)
	}
	return o.problems()
}

func (o *outage) problems() []string {
	return append(o.model.check(o.s), audit(o.s)...)
}

// use makes requests and changes until over returns true. It syncs from time to time: earlier answers are safe from then
// on.
func (o *outage) use(over func() bool) {
	o.t.Helper()
	w := traffic{s: o.s, recorder: o.model, round: o.round, snapshots: o.target == failpointNames[failSnapshot] || o.random.IntN(3) == 0}
	w.beforeRequest = func() error {
		if over() {
			w.stop()
		}
		if rand.IntN(50) > 0 {
			return nil
		}
		safe := o.model.snapshotAnswers()
		err := o.s.syncEvents()
		safe()
		return err
	}
	w.start()
	if err := w.wait(); err != nil {
		o.t.Fatalf("round %d: %v", o.round, err)
	}
}

const powerCuts = 25

// TestPowerCut: after a power cut the store has all answered requests with Power, and all requests answered before the
// last sync with Process. Any other writes may have reached the disk, in any order. The store opens, its counters and
// histories agree, and it counts requests.
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

// TestPowerCutIsNoticed: the test of power cuts finds a store that breaks its durability. Otherwise TestPowerCut would
// prove nothing.
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
			t.Error("no problem was found: the test does not notice the loss")
		})
	}
}

// oneLineOf returns a text up to its first line break.
func oneLineOf(s string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(s), "\n")
	return line
}
