package badgerstore

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/limitkeeper/limitkeeper/storage/badgerstore/internal/table"
)

// mustRebuild runs Rebuild with consent, and returns the lines of its plan.
func mustRebuild(t *testing.T, dir string) (lines []string) {
	t.Helper()
	aside, err := Rebuild(dir, RebuildOptions{Confirm: func(l []string) bool {
		lines = l
		return true
	}, Progress: func(string) {}})
	if err != nil || !strings.HasPrefix(aside, asidePrefix) {
		t.Fatalf("Rebuild: got %q, %v", aside, err)
	}
	return lines
}

// databaseLosses damage or delete the database of a store.
var databaseLosses = map[string]func(t *testing.T, dir string){
	"every table damaged": func(t *testing.T, dir string) {
		for _, path := range glob(t, dir, "*.sst") {
			changeByte(t, path, 900)
		}
	},
	"no MANIFEST":             func(t *testing.T, dir string) { remove(t, glob(t, dir, "MANIFEST")) },
	"INVENTORY emptied":       func(t *testing.T, dir string) { truncate(t, glob(t, dir, "INVENTORY")) },
	"only the event log left": func(t *testing.T, dir string) { remove(t, glob(t, dir, "*")) },
}

func glob(t *testing.T, dir, pattern string) (files []string) {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(dir, pattern))
	for _, path := range paths {
		if info, _ := os.Stat(path); info.Mode().IsRegular() {
			files = append(files, path)
		}
	}
	if err != nil || len(files) == 0 {
		t.Fatalf("%s: got %v, %v", pattern, files, err)
	}
	return files
}

func remove(t *testing.T, files []string) {
	t.Helper()
	for _, path := range files {
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
}

func truncate(t *testing.T, files []string) {
	t.Helper()
	for _, path := range files {
		if err := os.Truncate(path, 0); err != nil {
			t.Fatal(err)
		}
	}
}

// TestRebuild: Rebuild makes a new database from the event log, for any loss of the old database after a clean stop or a
// kill. Every key, user, counter, history and request id is as before, and Check finds no damage. Rebuild changes nothing
// without consent, and keeps the old files.
func TestRebuild(t *testing.T) {
	for _, clean := range []bool{true, false} {
		whole, want := filledStore(t, clean)
		for name, lose := range databaseLosses {
			t.Run(stopName(clean)+"/"+name, func(t *testing.T) {
				dir := copyOf(t, whole)
				lose(t, dir)
				before := contents(t, dir)
				if s, err := open(dir, quiet); !isDamage(err) {
					t.Errorf("open: got %v, %v, want damage", s, err)
				}
				refuse := RebuildOptions{Confirm: func([]string) bool { return false }, Progress: func(string) {}}
				if aside, err := Rebuild(dir, refuse); err != nil || aside != "" || !maps.Equal(contents(t, dir), before) {
					t.Fatalf("without consent: got %q, %v, or other files", aside, err)
				}
				lines := mustRebuild(t, dir)
				if text := strings.Join(lines, ""); len(lines) != 3 || strings.Contains(text, "\n") {
					t.Errorf("got lines %q, want 3", lines)
				}
				for name, content := range contents(t, glob1(t, dir, asidePrefix+"*")) {
					if before[name] != content {
						t.Errorf("%s was changed", name)
					}
				}
				wantDump(t, dir, want)
			})
		}
	}
}

func stopName(clean bool) string { return map[bool]string{true: "clean stop", false: "kill"}[clean] }

func glob1(t *testing.T, dir, pattern string) string {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(dir, pattern))
	if err != nil || len(paths) != 1 {
		t.Fatalf("%s: got %v, %v, want one", pattern, paths, err)
	}
	return paths[0]
}

// wantDump fails unless a store has no damage, and its dump is want.
func wantDump(t *testing.T, dir, want string) {
	t.Helper()
	if got := checkDamages(t, dir); len(got) > 0 {
		t.Errorf("check: got %q", got)
	}
	s := openAlone(t, dir, quiet)
	if got, err := dump(s); err != nil || got != want {
		t.Errorf("got %v and other answers than before: %s", err, firstDifference(got, want))
	}
}

// TestRebuildRefuses: Rebuild returns an error of one line and changes nothing when the event log is damaged, is empty or
// lacks its first segment, and when the store is open.
func TestRebuildRefuses(t *testing.T) {
	d := storeToDamage(t, true)
	for name, lose := range map[string]func(string){
		"is damaged":     func(dir string) { changeByte(t, filepath.Join(dir, eventLogDir, d.files[1]), segmentData+5) },
		"was known to":   func(dir string) { remove(t, glob(t, filepath.Join(dir, eventLogDir), "*")) },
		"does not begin": func(dir string) { firstSegmentRemoved(t, dir) },
	} {
		dir := copyOf(t, d.dir)
		lose(dir)
		remove(t, glob(t, dir, "MANIFEST"))
		before := contents(t, dir)
		_, err := Rebuild(dir, RebuildOptions{Confirm: func([]string) bool { return true }, Progress: func(string) {}})
		if err == nil || !strings.Contains(err.Error(), name) || !strings.Contains(err.Error(), dir) || strings.Contains(err.Error(), "\n") {
			t.Errorf("Rebuild: got error %v, want one line with %q", err, name)
		}
		if !maps.Equal(contents(t, dir), before) {
			t.Errorf("%s: the files were changed", name)
		}
	}
	openAlone(t, d.dir, damagedOptions)
	if _, err := Rebuild(d.dir, RebuildOptions{}); !errors.Is(err, ErrInUse) {
		t.Errorf("Rebuild of an open store: got %v, want %v", err, ErrInUse)
	}
}

// firstSegmentRemoved removes the oldest segment, like retention.
func firstSegmentRemoved(t *testing.T, dir string) {
	t.Helper()
	s := openAlone(t, dir, damagedOptions)
	if err := s.remove(s.events.Segments()[:1]); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestRebuildInterrupted: after a kill while Rebuild moves the old or the new database, Open refuses the store until it is
// rebuilt. The second Rebuild still knows the end of the event log, and refuses a shorter log.
func TestRebuildInterrupted(t *testing.T) {
	whole, want := filledStore(t, true)
	for name, moved := range map[string][]string{"old database moved": {"*.sst", "KEYREGISTRY", "MANIFEST"}, "all but MANIFEST in place": {"MANIFEST"}} {
		t.Run(name, func(t *testing.T) {
			dir := copyOf(t, whole)
			remove(t, glob(t, dir, "MANIFEST"))
			r := rebuild{dir: dir, progress: func(string) {}}
			for _, step := range []func() error{r.plan, r.create, func() error { _, err := r.replace(noon); return err }} {
				if err := step(); err != nil {
					t.Fatal(err)
				}
			}
			for _, pattern := range moved {
				paths, _ := filepath.Glob(filepath.Join(dir, pattern))
				remove(t, paths)
			}
			if _, err := open(dir, quiet); !isDamage(err) {
				t.Errorf("open without a database: got %v, want damage", err)
			}
			short := copyOf(t, dir)
			log := glob(t, filepath.Join(short, eventLogDir), "*"+segmentSuffix)
			truncate(t, log[len(log)-1:])
			if aside, err := Rebuild(short, consent); err == nil || aside != "" {
				t.Errorf("Rebuild with a shorter event log: got %q, %v, want an error", aside, err)
			}
			if lines := mustRebuild(t, dir); !strings.Contains(lines[2], "The event log is whole") {
				t.Errorf("got lines %q", lines)
			}
			wantDump(t, dir, want)
		})
	}
}

// consent consents to a rebuild.
var consent = RebuildOptions{Confirm: func([]string) bool { return true }, Progress: func(string) {}}

// TestRebuildWhole: Rebuild reports that the files of the database are whole. It replaces nothing when the records are
// whole, too.
func TestRebuildWhole(t *testing.T) {
	dir, want := filledStore(t, true)
	stable := func() []string { // without the tables and logs: Badger may replace these whenever the database is opened
		return slices.DeleteFunc(filesIn(t, dir), func(name string) bool {
			return slices.Contains([]string{table.Suffix, table.LogSuffix, table.ValueLogSuffix}, filepath.Ext(name))
		})
	}
	before := stable()
	o := consent
	o.Confirm = func(lines []string) bool {
		if !strings.Contains(lines[0], "are whole") {
			t.Errorf("got lines %q", lines)
		}
		return true
	}
	if aside, err := Rebuild(dir, o); err != nil || aside != "" {
		t.Errorf("Rebuild of an undamaged database: got %q, %v, want no change", aside, err)
	}
	if got, _ := filepath.Glob(filepath.Join(dir, asidePrefix+"*")); len(got) > 0 || !slices.Equal(stable(), before) {
		t.Errorf("got files %q, want %q and no others", stable(), before)
	}
	wantDump(t, dir, want)
}

// TestRebuildRepairs: when the database and the event log are damaged, Rebuild makes a store from the copy and the events
// before the damage, and reports the loss. Without a copy, Rebuild advises to restore a backup, and changes nothing.
func TestRebuildRepairs(t *testing.T) {
	dir, _ := copiedStore(t, true)
	s := openAlone(t, dir, smallSegments)
	for n := len(s.events.Segments()) + 4; len(s.events.Segments()) < n; {
		consume(t, s, request(damagedKey(1), 2, endless, noon.Add(time.Hour)))
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	segments := glob(t, filepath.Join(dir, eventLogDir), "*"+segmentSuffix)
	changeByte(t, segments[len(segments)-2], segmentData+5)
	remove(t, glob(t, dir, "*.sst"))
	if _, err := Repair(dir, func([]string) bool { return true }); err == nil || !strings.Contains(err.Error(), "limitkeeper rebuild") {
		t.Errorf("Repair: got %v, want the other command", err)
	}
	without := copyOf(t, dir)
	before := contents(t, without)
	if _, err := Rebuild(without, consent); err == nil || !strings.Contains(err.Error(), "restore a backup") || !maps.Equal(contents(t, without), before) {
		t.Errorf("Rebuild without a copy: got %v, or other files", err)
	}
	text := strings.Join(mustRebuild(t, dir), "\n")
	for _, want := range []string{filepath.Base(segments[len(segments)-2]), "LOST", "Kept: ", "the copy of "} {
		if !strings.Contains(text, want) {
			t.Errorf("got lines %q, want %q", text, want)
		}
	}
	if got := checkDamages(t, dir); len(got) > 0 {
		t.Errorf("check: got %q", got)
	}
	s = openAlone(t, dir, quiet)
	consume(t, s, request(damagedKey(1), 2, endless, noon.Add(2*time.Hour)))
}

// TestReplayWritesPages: a replay of a large event log writes pages from time to time, so its memory is bounded. After a
// kill at any of these writes, the store opens with the same data, also when the pages are in tables.
func TestReplayWritesPages(t *testing.T) {
	whole, want := filledStore(t, false)
	dir := copyOf(t, whole)
	remove(t, glob(t, dir, "*"))
	r := &rebuild{dir: dir}
	if err := r.create(); err != nil {
		t.Fatal(err)
	}
	if _, err := r.replace(noon); err != nil {
		t.Fatal(err)
	}
	var moments []string
	checkpoints, records := 0, 0
	o := Options{Logger: quiet.Logger, flushBytes: 100, failpoint: func(at failpoint) {
		if at == failMarked {
			checkpoints++
		}
		if records++; records%20 == 0 {
			moments = append(moments, killedCopy(t, dir))
		}
	}}
	openAlone(t, dir, o)
	if checkpoints < 3 || len(moments) < 10 {
		t.Fatalf("got %d writes of pages and %d copies of killed stores", checkpoints, len(moments))
	}
	moments = append(moments, replayedOver(t, killedCopy(t, dir), dir))
	for _, dir := range moments {
		s, err := open(dir, Options{Logger: quiet.Logger})
		if err != nil {
			t.Fatal(err)
		}
		if got, err := dump(s); err != nil || got != want {
			t.Errorf("got %v or other data than before: %s", err, firstDifference(got, want))
		}
		abandon(t, s)
	}
}

// killedCopy returns a copy of the files that a kill would leave now.
func killedCopy(t *testing.T, dir string) string {
	t.Helper()
	to := t.TempDir()
	for name, content := range databaseFiles(t, dir) {
		if err := os.WriteFile(filepath.Join(to, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	copyEventLog(t, to, dir)
	return to
}

// TestRebuildWholeWithoutCopy: for a whole database that it cannot rebuild, Rebuild advises to run check first, and to
// restore a backup only if check reports damage. A failure means that an operator restores old data for no reason, or that
// check and Rebuild name each other without end.
func TestRebuildWholeWithoutCopy(t *testing.T) {
	dir := storeToDamage(t, true).dir
	firstSegmentRemoved(t, dir)
	if _, err := Rebuild(dir, consent); err == nil || !strings.Contains(err.Error(), "run limitkeeper check, and restore a backup if it reports damage") {
		t.Errorf("Rebuild of a whole database: got %v, want an error that names check first", err)
	}
	remove(t, glob(t, dir, "*.sst"))
	if _, err := Rebuild(dir, consent); err == nil || !strings.Contains(err.Error(), "restore a backup") {
		t.Errorf("Rebuild of a damaged database: got %v, want an error that asks for a backup", err)
	}
}

// TestRebuildMovedNothing: an error before the old database is moved does not name the directory of the old database.
func TestRebuildMovedNothing(t *testing.T) {
	dir, _ := filledStore(t, true)
	if err := os.Mkdir(filepath.Join(dir, asidePrefix+noon.UTC().Format("20060102T150405.000Z")), 0o700); err != nil {
		t.Fatal(err)
	}
	r := rebuild{dir: dir, progress: func(string) {}}
	if err := firstOf(r.plan(), r.create()); err != nil {
		t.Fatal(err)
	}
	before := databaseFiles(t, dir)
	if name, err := r.replace(noon); err == nil || name != "" || !maps.Equal(databaseFiles(t, dir), before) {
		t.Errorf("replace: got %q, %v, or other files, want an error and no name", name, err)
	}
}
