package badgerstore

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/badgerstore/internal/table"
	"github.com/limitkeeper/limitkeeper/storage/eventlog"
)

// TestRepair: after a repair, each damaged event log opens, and Check finds no damage. Counters include the checkpoint and
// the kept events, which is everything when the damage is before the mark. Repair deletes no byte of a segment: it keeps
// the old file under another name.
func TestRepair(t *testing.T) {
	t.Parallel()
	for _, clean := range []bool{true, false} {
		d := storeToDamage(t, clean)
		for _, c := range logDamages {
			for i, want := range map[int]damageOutcome{3: c.last, 1: c.before} {
				t.Run(fmt.Sprintf("clean=%v/segment %d/%s", clean, i, c.name), func(t *testing.T) {
					d.repair(t, d.files[i], c.damage, want, i < 3)
				})
			}
		}
	}
}

func (d *damagedStore) repair(t *testing.T, name string, damage func([]byte) []byte, outcome damageOutcome, checkpointed bool) {
	dir := copyOf(t, d.dir)
	damageFile(t, filepath.Join(dir, eventLogDir, name), damage)
	before := segmentContents(t, dir)
	calls := 0
	confirm := func(yes bool) func([]string) bool {
		return func(lines []string) bool {
			if calls++; len(lines) < 2 || strings.Contains(strings.Join(lines, ""), "\n") {
				t.Errorf("got %q, want at least 2 lines", lines)
			}
			return yes
		}
	}
	if names, err := Repair(dir, confirm(false)); err != nil || len(names) > 0 || !maps.Equal(segmentContents(t, dir), before) {
		t.Fatalf("without consent: got %v, %v, and other files", names, err)
	}
	names, err := Repair(dir, confirm(true))
	if err != nil {
		t.Fatalf("Repair: %v", err)
	}
	if outcome == healed {
		if calls > 0 {
			t.Errorf("Repair asked for consent without damage")
		}
		return
	}
	for _, name := range names {
		if _, err := os.Stat(filepath.Join(dir, eventLogDir, name)); err != nil || !strings.HasSuffix(name, eventlog.AsideSuffix) {
			t.Errorf("set aside %s: %v", name, err)
		}
	}
	after := segmentContents(t, dir)
	for name, content := range before {
		kept := after[name] // its header and status may differ
		if after[name+eventlog.AsideSuffix] != content && (len(kept) != len(content) || kept[min(len(kept), segmentData):] != content[min(len(kept), segmentData):]) {
			t.Errorf("%s was deleted or changed", name)
		}
	}
	d.wantRepaired(t, dir, checkpointed)
}

// wantRepaired fails unless a repaired store is whole and counts requests. All counters are as before when they are in
// the checkpoint.
func (d *damagedStore) wantRepaired(t *testing.T, dir string, checkpointed bool) {
	t.Helper()
	if got := checkDamages(t, dir); len(got) > 0 {
		t.Errorf("check after the repair: %q", got)
	}
	s, err := open(dir, damagedOptions)
	if err != nil {
		t.Fatalf("open after the repair: %v", err)
	}
	defer abandon(t, s)
	used, err := s.Counters(t.Context(), digested)
	for i := range digested {
		if err != nil || checkpointed && !sameCounter(used[i], d.used[i]) {
			t.Errorf("counter of %v: got %+v, %v, want %+v", digested[i], used, err, d.used[i])
		}
	}
	if _, err := digestOfCounts(s); err != nil {
		t.Errorf("histories after the repair: %v", err)
	}
	consume(t, s, request("key", 1, endless, noon))
}

func segmentContents(t *testing.T, dir string) map[string]string {
	t.Helper()
	m := map[string]string{}
	for name, content := range contents(t, filepath.Join(dir, eventLogDir)) {
		m[name] = content
	}
	return m
}

// consent consents to a repair.
func consent([]string) bool { return true }

// TestRepairInUse: Repair refuses an open store.
func TestRepairInUse(t *testing.T) {
	dir := t.TempDir()
	openAlone(t, dir, quiet)
	if _, err := Repair(dir, nil); !errors.Is(err, ErrInUse) {
		t.Errorf("Repair: got %v, want %v", err, ErrInUse)
	}
}

// TestRepairHoldsLock: while Repair changes the event log, no other process can lock the store. A server that
// could start in between would answer requests whose counts the repair then cuts off.
func TestRepairHoldsLock(t *testing.T) {
	whole, _ := imagedStore(t, true)
	files := segmentFiles(t, whole)
	for name, c := range map[string]struct {
		lost string
		mend func(dir string) error
	}{
		"event log":    {"none", func(dir string) error { _, err := Repair(dir, consent); return err }},
		"and database": {"*.sst", func(dir string) error { _, err := Repair(dir, consent); return err }},
	} {
		t.Run(name, func(t *testing.T) {
			dir := copyOf(t, whole)
			changeByte(t, filepath.Join(dir, eventLogDir, filepath.Base(files[len(files)-1])), segmentData+5)
			lost, _ := filepath.Glob(filepath.Join(databaseIn(dir), c.lost))
			remove(t, lost)
			changes, unlocked := 0, 0
			defer func(fs eventlog.FS) { eventlog.OS = fs }(eventlog.OS)
			eventlog.OS = &hookedFS{FS: eventlog.OS, before: func(op fsOp) error {
				if op.kind == "open" { // also to read
					return nil
				}
				changes++
				if release, err := table.Claim(dir); err == nil {
					unlocked++
					release()
				}
				return nil
			}}
			if err := c.mend(dir); err != nil || changes == 0 || unlocked > 0 {
				t.Errorf("got error %v, and no lock during %d of %d changes", err, unlocked, changes)
			}
		})
	}
}

// TestRepairEmptyLogs: Repair works in a directory with empty logs of Badger, as a kill can leave them. The plan alone
// removes none of them.
func TestRepairEmptyLogs(t *testing.T) {
	d := storeToDamage(t, false)
	dir := copyOf(t, d.dir)
	changeByte(t, filepath.Join(dir, eventLogDir, d.files[3]), segmentData+5)
	for _, name := range []string{"00099.mem", "000099.vlog"} {
		if err := os.WriteFile(filepath.Join(databaseIn(dir), name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	before := contents(t, dir)
	if _, err := Repair(dir, func([]string) bool { return false }); err != nil || !maps.Equal(contents(t, dir), before) {
		t.Errorf("without consent: got error %v, or other files", err)
	}
	if names, err := Repair(dir, consent); err != nil || len(names) == 0 {
		t.Errorf("Repair: got %q, %v", names, err)
	}
}

// TestRepairLostEventLog: when the directory of the event log is lost, Check reports damage of the event log and
// names the command that mends it. Repair begins a new event log, and keeps the counts of the last checkpoint.
func TestRepairLostEventLog(t *testing.T) {
	d := storeToDamage(t, true)
	for _, lost := range []string{eventLogDir, eventLogDir + " " + filepath.Join(databaseDir, table.InventoryName)} {
		dir := copyOf(t, d.dir)
		for _, name := range strings.Fields(lost) {
			if err := os.RemoveAll(filepath.Join(dir, name)); err != nil {
				t.Fatal(err)
			}
		}
		if got := checkDamages(t, copyOf(t, dir)); len(got) != 1 || !strings.Contains(got[0], eventlog.ErrDamaged.Error()) {
			t.Errorf("without %s: check: got %q, want one damage of the event log", lost, got)
		}
		if names, err := Repair(dir, consent); err != nil || len(names) > 0 {
			t.Fatalf("without %s: Repair: got %q, %v", lost, names, err)
		}
		d.wantRepaired(t, dir, lost == eventLogDir) // without the file INVENTORY, the store has the counts of the image
	}
}

// TestRepairReportsLoss: the plan names the damaged file, the number of kept events and of lost readable events, with the times of
// the first and last one, and whether their counts stay.
func TestRepairReportsLoss(t *testing.T) {
	d := storeToDamage(t, false)
	const when = `(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ)`
	events := `(\d+) readable events from ` + when + " to " + when + `(?:, and \d+ other records)?\.`
	kept, lost := "Kept: "+events+"\n", `Lost: \d+ bytes with `+events+" "
	for i, want := range map[int]string{
		1: kept + lost + "Their counts stay: .*",
		3: kept + lost + "Their counts, their history, and their changes of users, keys and plans are LOST\\.",
	} {
		dir := copyOf(t, d.dir)
		changeByte(t, filepath.Join(dir, eventLogDir, d.files[i]), segmentData+2000)
		text := ""
		if _, err := Repair(dir, func(lines []string) bool {
			text = strings.Join(lines, "\n")
			return false
		}); err != nil {
			t.Fatal(err)
		}
		got := regexp.MustCompile("(?s)^[^\n]*" + d.files[i] + "[^\n]*\n" + want + "\nIf you have a backup [^\n]*$").FindStringSubmatch(text)
		if got == nil {
			t.Errorf("got %q, want %q", text, want)
			continue
		}
		before, after := got[2:4], got[5:7] // the times of the kept events, and of the lost ones
		if i == 1 {
			before, after = after, before
		}
		if before[0] != noon.Add(time.Second).Format(time.RFC3339) || before[1] >= after[0] || after[0] >= after[1] {
			t.Errorf("got %q, want ascending times from noon on", got[1:])
		}
	}
}

// TestRepairAfterClose: after a clean stop the checkpoint is at the end of the event log. Damage there costs no count. The history
// behind the damage stays, and that before the damage is lost.
func TestRepairAfterClose(t *testing.T) {
	whole := t.TempDir()
	s := openAlone(t, whole, damagedOptions)
	known(t, s, "key")
	for len(s.events.Segments()) < 4 {
		consume(t, s, request("key", 1, endless, noon))
	}
	const last = 40 // the number of requests in the last segment
	for range last - 1 {
		consume(t, s, request("key", 1, endless, noon))
	}
	used := counterOf(t, s, ofKey("key")).Requests[core.Month]
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		damage func([]byte) []byte
		least  int // the number of entries that stay in the history
	}{
		"cut off": {func(b []byte) []byte { return b[:segmentData+1] }, 0},
		"flip":    {flip(-1), last/2 - 2},
	} {
		dir := copyOf(t, whole)
		files := segmentFiles(t, dir)
		damageFile(t, files[len(files)-1], c.damage)
		if _, err := Repair(dir, consent); err != nil {
			t.Fatal(err)
		}
		if _, err := Repair(dir, func([]string) bool { t.Errorf("%s: a second repair has something to do", name); return false }); err != nil {
			t.Error(err)
		}
		s := openAlone(t, dir, damagedOptions)
		if got := len(historyOf(t, s, ofKey("key"))); got < c.least || got > c.least+3 {
			t.Errorf("%s: history: got %d entries, want %d or some more", name, got, c.least)
		}
		consume(t, s, request("key", 1, endless, noon))
		if got := counterOf(t, s, ofKey("key")).Requests[core.Month]; got != used+1 {
			t.Errorf("%s: got %d used, want %d", name, got, used+1)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		wantWhole(t, dir)
	}
}

// TestRepairNothingLeft: Repair refuses a store that was killed before its first table, when the first block of the event
// log is damaged. Repair then advises to restore a backup, and changes nothing. A failure means that Repair sets the whole
// event log aside, and that nothing can mend the store then.
func TestRepairNothingLeft(t *testing.T) {
	for _, segments := range []int{1, 2} {
		s := openAlone(t, t.TempDir(), damagedOptions)
		known(t, s, "key")
		for len(s.events.Segments()) < segments {
			consume(t, s, request("key", 1, endless, noon))
		}
		if err := s.syncEvents(); err != nil {
			t.Fatal(err)
		}
		dir := t.TempDir()
		copyKilled(t, dir, s.dir)
		changeByte(t, segmentFiles(t, dir)[0], segmentData+30)
		before := contents(t, dir)
		_, err := Repair(dir, func([]string) bool { return true })
		if err == nil || !strings.Contains(err.Error(), "restore a backup") || strings.Contains(err.Error(), "\n") || !maps.Equal(contents(t, dir), before) {
			t.Errorf("%d segments: got %v, or other files, want one line that advises to restore a backup", segments, err)
		}
	}
}
