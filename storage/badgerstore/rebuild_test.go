package badgerstore

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// rebuilt runs Rebuild with consent and returns the lines that it asked with.
func rebuilt(t *testing.T, dir string) (lines []string) {
	t.Helper()
	aside, err := Rebuild(dir, Rebuilding{Confirm: func(l []string) bool {
		lines = l
		return true
	}, Progress: func(string) {}})
	if err != nil || !strings.HasPrefix(aside, asidePrefix) {
		t.Fatalf("Rebuild: got %q, %v", aside, err)
	}
	return lines
}

// lost are ways to lose a database.
var lost = map[string]func(t *testing.T, dir string){
	"every table damaged": func(t *testing.T, dir string) {
		for _, path := range glob(t, dir, "*.sst") {
			changeByte(t, path, 900)
		}
	},
	"no MANIFEST":         func(t *testing.T, dir string) { remove(t, glob(t, dir, "MANIFEST")) },
	"INVENTORY emptied":   func(t *testing.T, dir string) { truncate(t, glob(t, dir, "INVENTORY")) },
	"nothing but the log": func(t *testing.T, dir string) { remove(t, glob(t, dir, "*")) },
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

// TestRebuild: whatever becomes of the database of a store, after a clean stop or a kill, Rebuild makes
// a new one from the event log: every key, user, counter, history and request id is as before, and check
// finds nothing. Without consent nothing is changed. The old files are kept.
func TestRebuild(t *testing.T) {
	for _, clean := range []bool{true, false} {
		whole, want := filledStore(t, clean)
		for name, lose := range lost {
			t.Run(stopped(clean)+"/"+name, func(t *testing.T) {
				dir := copyOf(t, whole)
				lose(t, dir)
				before := contents(t, dir)
				if s, err := open(dir, quiet); !isDamage(err) {
					t.Errorf("open: got %v, %v, want damage", s, err)
				}
				refuse := Rebuilding{Confirm: func([]string) bool { return false }, Progress: func(string) {}}
				if aside, err := Rebuild(dir, refuse); err != nil || aside != "" || !maps.Equal(contents(t, dir), before) {
					t.Fatalf("without consent: got %q, %v, or other files", aside, err)
				}
				lines := rebuilt(t, dir)
				if text := strings.Join(lines, ""); len(lines) != 3 || strings.Contains(text, "\n") {
					t.Errorf("got lines %q, want 3", lines)
				}
				for name, content := range contents(t, glob1(t, dir, asidePrefix+"*")) {
					if before[name] != content {
						t.Errorf("%s is not as it was", name)
					}
				}
				wantWorld(t, dir, want)
			})
		}
	}
}

func stopped(clean bool) string { return map[bool]string{true: "clean stop", false: "kill"}[clean] }

func glob1(t *testing.T, dir, pattern string) string {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(dir, pattern))
	if err != nil || len(paths) != 1 {
		t.Fatalf("%s: got %v, %v, want one", pattern, paths, err)
	}
	return paths[0]
}

// wantWorld fails unless a store is whole and answers everything as wanted.
func wantWorld(t *testing.T, dir, want string) {
	t.Helper()
	if got := checked(t, dir); len(got) > 0 {
		t.Errorf("check: got %q", got)
	}
	s := openAlone(t, dir, quiet)
	if got, err := world(s); err != nil || got != want {
		t.Errorf("got %v and other answers than before: %s", err, firstDifference(got, want))
	}
}

// TestRebuildRefuses: when the event log cannot make a database, Rebuild says so in one line and
// changes nothing: when the log is damaged, is cut off, has lost its first segment, and when the store is open.
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
		_, err := Rebuild(dir, Rebuilding{Confirm: func([]string) bool { return true }, Progress: func(string) {}})
		if err == nil || !strings.Contains(err.Error(), name) || !strings.Contains(err.Error(), dir) || strings.Contains(err.Error(), "\n") {
			t.Errorf("Rebuild: got error %v, want one line with %q", err, name)
		}
		if !maps.Equal(contents(t, dir), before) {
			t.Errorf("%s: the files were changed", name)
		}
	}
	openAlone(t, d.dir, damagedOptions)
	if _, err := Rebuild(d.dir, Rebuilding{}); !errors.Is(err, ErrInUse) {
		t.Errorf("Rebuild of an open store: got %v, want %v", err, ErrInUse)
	}
}

// firstSegmentRemoved removes the oldest segment as retention does.
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

// TestRebuildOfUpgraded: the event log of a store that an earlier version made has no users and keys of
// then. Rebuild refuses it until there is a copy.
func TestRebuildOfUpgraded(t *testing.T) {
	dir := copyOf(t, filepath.Join("testdata", "format1"))
	s := openAlone(t, dir, quiet)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	_, err := Rebuild(dir, Rebuilding{Progress: func(string) {}})
	if err == nil || !strings.Contains(err.Error(), "does not begin") {
		t.Errorf("Rebuild: got %v", err)
	}
	s = openAlone(t, dir, quiet)
	scrubbed(t, s)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	want := worldOf(t, dir)
	remove(t, glob(t, dir, "*.sst"))
	rebuilt(t, dir)
	wantWorld(t, dir, want)
	copied := t.TempDir()
	copyKilled(t, copied, dir) // the store is open: Badger may be compacting
	wantUsed(t, openAlone(t, copied, quiet), ofKey("key"), format1Key)
}

// TestRebuildInterrupted: a process that is killed after Rebuild has moved the database leaves a store that is
// refused until it is rebuilt, and one that is killed while it replays leaves a store that opens as it was.
func TestRebuildInterrupted(t *testing.T) {
	whole, want := filledStore(t, true)
	dir := copyOf(t, whole)
	r := rebuild{dir: dir, progress: func(string) {}}
	if err := r.plan(); err != nil {
		t.Fatal(err)
	}
	if _, err := r.setAside(noon); err != nil {
		t.Fatal(err)
	}
	if _, err := open(dir, quiet); !isDamage(err) {
		t.Errorf("open without a database: got %v, want damage", err)
	}
	if lines := rebuilt(t, dir); !strings.Contains(lines[2], "not known") {
		t.Errorf("without the inventory: got lines %q", lines)
	}
	wantWorld(t, dir, want)
}

// TestReplayWritesPages: a replay of a large event log writes pages from time to time, so its memory is bounded. A kill
// after any of these writes leaves a store that opens as before, also when the pages are in tables.
func TestReplayWritesPages(t *testing.T) {
	whole, want := filledStore(t, false)
	dir := copyOf(t, whole)
	remove(t, glob(t, dir, "*"))
	if err := (&rebuild{dir: dir}).create(); err != nil {
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
		if got, err := world(s); err != nil || got != want {
			t.Errorf("got %v and other answers than before: %s", err, firstDifference(got, want))
		}
		abandon(t, s)
	}
}

// killedCopy returns a copy of a store as a kill would leave it now.
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
