package badgerstore

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/badgerstore/internal/diskspace"
	"github.com/limitkeeper/limitkeeper/storage/badgerstore/internal/table"
	"github.com/limitkeeper/limitkeeper/storage/eventlog"
)

// databaseLosses damage or delete the database of a store.
var databaseLosses = map[string]func(t *testing.T, dir string){
	"every table damaged": func(t *testing.T, dir string) {
		for _, path := range glob(t, dir, "*.sst") {
			changeByte(t, path, 900)
		}
	},
	"no MANIFEST":       func(t *testing.T, dir string) { remove(t, glob(t, dir, "MANIFEST")) },
	"INVENTORY emptied": func(t *testing.T, dir string) { truncate(t, glob(t, dir, "INVENTORY")) },
	"no file of the database": func(t *testing.T, dir string) {
		if err := os.RemoveAll(databaseIn(dir)); err != nil {
			t.Fatal(err)
		}
	},
}

func glob(t *testing.T, dir, pattern string) (files []string) {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(dir, "*", pattern))
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

func stopName(clean bool) string { return map[bool]string{true: "clean stop", false: "kill"}[clean] }

// wantDump fails unless a store opens with a dump that is want, and has no damage afterwards.
func wantDump(t *testing.T, dir, want string) {
	t.Helper()
	s := openAlone(t, dir, quiet)
	if got, err := dump(s); err != nil || got != want {
		t.Errorf("got %v and other answers than before: %s", err, firstDifference(got, want))
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if got := checkDamages(t, dir); len(got) > 0 {
		t.Errorf("check: got %q", got)
	}
}

// TestRenew: a start rebuilds the database after any loss, after a clean stop or a kill, from the event log alone, and from
// an image and the event log after it. Every key, user, counter, history and request id is as before.
func TestRenew(t *testing.T) {
	for _, clean := range []bool{true, false} {
		for source, make := range map[string]func(*testing.T, bool) (dir, want string){"event log": filledStore, "image": imagedStore} {
			whole, want := make(t, clean)
			for name, lose := range databaseLosses {
				t.Run(stopName(clean)+"/"+source+"/"+name, func(t *testing.T) {
					dir := copyOf(t, whole)
					lose(t, dir)
					odd := filepath.Join(t.TempDir(), "[a-b]*")
					if err := os.Rename(dir, odd); err != nil {
						t.Fatal(err)
					}
					wantDump(t, odd, want)
				})
			}
		}
	}
}

// TestRenewRefuses: when the event log is damaged too, the start is refused in one line, and no file is changed.
func TestRenewRefuses(t *testing.T) {
	d := storeToDamage(t, true)
	dir := copyOf(t, d.dir)
	changeByte(t, filepath.Join(dir, eventLogDir, d.files[3]), segmentData+5)
	remove(t, glob(t, dir, "MANIFEST"))
	before := contents(t, dir)
	_, err := open(dir, damagedOptions)
	wantNamed(t, "open", err, d.files[3])
	if after := contents(t, dir); fmt.Sprint(after) != fmt.Sprint(before) {
		t.Error("the files were changed")
	}
}

// TestRenewWithoutImage: no image of a store is whole whose first segments were removed. The start is refused in one line that
// advises to restore a backup. A damaged image alone is no reason: the older one is used.
func TestRenewWithoutImage(t *testing.T) {
	whole, want := imagedStore(t, true)
	images := glob(t, whole, table.ImagePrefix+"*")
	if len(images) != 2 {
		t.Fatalf("got the images %q, want two", images)
	}
	for damaged := range 3 {
		dir := copyOf(t, whole)
		for _, path := range images[2-damaged:] {
			changeByte(t, filepath.Join(imagesIn(dir), filepath.Base(path)), 100)
		}
		remove(t, glob(t, dir, "MANIFEST"))
		if damaged < 2 {
			s := openAlone(t, dir, smallSegments)
			if got, err := dump(s); err != nil || got != want {
				t.Errorf("%d damaged images: got %v and other answers than before: %s", damaged, err, firstDifference(got, want))
			}
			continue
		}
		_, err := open(dir, smallSegments)
		if wantOneLine(t, err, table.ImagePrefix); !isDamage(err) || !strings.Contains(err.Error(), "restore a backup") {
			t.Errorf("no whole image: got error %v, want that a backup is to be restored", err)
		}
	}
}

// TestRenewInterrupted: the process is killed at any moment while the database is rebuilt. The next start rebuilds it again.
func TestRenewInterrupted(t *testing.T) {
	whole, want := imagedStore(t, true)
	dir := copyOf(t, whole)
	remove(t, glob(t, dir, "INVENTORY"))
	src, err := newestSource(dir, firstPosition+1, quiet.Logger)
	if err != nil {
		t.Fatal(err)
	}
	moments, n := []string{}, 0
	interrupted := source{state: src.state, records: func(fn func(key, value []byte) error) error {
		return src.records(func(key, value []byte) error {
			if n++; n%20 == 0 {
				moments = append(moments, killedCopy(t, dir))
			}
			return fn(key, value)
		})
	}}
	db, err := interrupted.create(tableOptions(dir, quiet.Logger))
	if err != nil {
		t.Fatal(err)
	}
	moments = append(moments, killedCopy(t, dir))
	if err := db.Close(); err != nil || len(moments) < 3 {
		t.Fatalf("got %v, %d moments", err, len(moments))
	}
	for i, dir := range moments {
		s := openAlone(t, dir, smallSegments)
		if got, err := dump(s); err != nil || got != want {
			t.Errorf("moment %d: got %v and other answers than before: %s", i, err, firstDifference(got, want))
		}
	}
}

// mustScrub runs a scrub that must find no damage.
func mustScrub(t *testing.T, s *Store) {
	t.Helper()
	if err := scrubNow(s); err != nil {
		t.Fatalf("scrub: %v", err)
	}
}

func scrubNow(s *Store) error { return second(s.scrub(atOnce)) }

// atOnce does not pause.
func atOnce(int) error { return nil }

// mustImage writes an image.
func mustImage(t *testing.T, s *Store) {
	t.Helper()
	if err := s.writeImage(atOnce); err != nil {
		t.Fatalf("image: %v", err)
	}
}

// addSegments changes keys and counts requests until the event log has three more segments.
func addSegments(t *testing.T, s *Store, round int) {
	t.Helper()
	update(t, s, func(tx core.Tx) error { return changeKeys(tx, round) })
	for n := len(s.events.Segments()) + 3; len(s.events.Segments()) < n; {
		for i := range damagedKeys {
			if _, err := s.Key(t.Context(), acct, damagedKey(i)); err == nil {
				consume(t, s, request(damagedKey(i), int64(i%8+1), endless, noon.Add(time.Hour)))
			}
		}
	}
}

func anySegment(eventlog.Segment) bool { return true }

// imagedStore makes a store with two images. Retention has removed the segments before the older one. want is the dump of
// the store.
func imagedStore(t *testing.T, clean bool) (dir, want string) {
	t.Helper()
	dir, _ = filledStore(t, true)
	s := openAlone(t, dir, smallSegments)
	for round := range 2 {
		addSegments(t, s, 4+round)
		flushTables(t, s)
		mustScrub(t, s)
	}
	if err := s.remove(s.removable(anySegment)); err != nil {
		t.Fatal(err)
	}
	oldest, imaged := s.events.Segments()[0], s.retention.imaged.Load()
	if oldest.Base == firstPosition || oldest.Base > imaged || oldest.End < imaged {
		t.Fatalf("got the oldest segment %+v, want that of position %d", oldest, imaged)
	}
	update(t, s, func(tx core.Tx) error { return tx.PutUser(&core.User{AccountID: acct, ID: 2, Name: "late"}) })
	if clean {
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	} else {
		if err := s.syncEvents(); err != nil {
			t.Fatal(err)
		}
		killed := killedCopy(t, dir)
		abandon(t, s)
		dir = killed
	}
	return dir, dumpOf(t, dir)
}

// killedCopy returns a copy of the files that a kill would leave now.
func killedCopy(t *testing.T, dir string) string {
	t.Helper()
	to := t.TempDir()
	if err := makeDirs(to); err != nil {
		t.Fatal(err)
	}
	for name, content := range databaseFiles(t, dir) {
		if err := os.WriteFile(filepath.Join(to, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	copyEventLog(t, to, dir)
	return to
}

// TestImageMakesRoom: on a full disk, the older image is removed before any history. Beyond max_history, an image is wanted
// when removing history is not enough.
func TestImageMakesRoom(t *testing.T) {
	whole, _ := imagedStore(t, true)
	s := openAlone(t, copyOf(t, whole), smallSegments)
	free := []uint64{0, uint64(s.space.Enough())}
	s.space.Space = func(string) (n, size uint64, err error) {
		n, free = free[0], free[1:]
		return n, 1 << 40, nil
	}
	err := s.removeHistory(noon)
	s.space.Space = diskspace.Space
	left, _ := table.Images(imagesIn(s.dir))
	if err != nil || len(free) > 0 || len(left) != 1 || s.retention.removedEarly.Load() {
		t.Errorf("a full disk: got %v, the images %v, history removed %v", err, left, s.retention.removedEarly.Load())
	}
	if s.retention.imaged.Load() != left[0] || len(s.removable(anySegment)) == 0 {
		t.Error("segments are kept for a removed image")
	}

	s = openAlone(t, copyOf(t, whole), smallSegments)
	later := time.Now().Add(72 * time.Hour)
	s.SetMaxHistory(1)
	flushCheckpoint(t, s)
	before := len(s.events.Segments())
	if err := s.removeHistory(later); err != nil || !s.imageDue() {
		t.Errorf("above max_history: got %v, and no image is due", err)
	}
	mustImage(t, s)
	if err := firstOf(s.keepImages(1), s.removeHistory(later)); err != nil || len(s.events.Segments()) >= before {
		t.Errorf("after the image: got %v, %d segments, want fewer than %d", err, len(s.events.Segments()), before)
	}
}

// TestImageStopped: when writing an image is stopped, no draft is left and the others stay. The next start removes the draft
// of a killed process.
func TestImageStopped(t *testing.T) {
	dir, _ := imagedStore(t, true)
	s := openAlone(t, dir, smallSegments)
	known(t, s, "more")
	writeCheckpoint(t, s)
	before := fmt.Sprint(glob(t, dir, table.ImagePrefix+"*"))
	if err := s.writeImage(func(int) error { return errStopped }); !errors.Is(err, errStopped) {
		t.Errorf("got error %v, want %v", err, errStopped)
	}
	if after := fmt.Sprint(glob(t, dir, table.ImagePrefix+"*")); after != before {
		t.Errorf("got the images %v, want %v", after, before)
	}
	if err := firstOf(s.Close(), os.WriteFile(filepath.Join(imagesIn(dir), table.ImagePrefix+"draft"), []byte("draft"), 0o600)); err != nil {
		t.Fatal(err)
	}
	openAlone(t, dir, smallSegments)
	if after := fmt.Sprint(glob(t, dir, table.ImagePrefix+"*")); after != before {
		t.Errorf("after a start: got the images %v, want %v", after, before)
	}
}

// TestImageDuringWrites: images that are made while tables are written and compacted are whole. The store is rebuilt from
// the last image and the event log.
func TestImageDuringWrites(t *testing.T) {
	dir, _ := filledStore(t, true)
	s := openAlone(t, dir, Options{Logger: quiet.Logger, pagesEvery: 1})
	written, images := make(chan error), 0
	go func() {
		written <- func() error {
			for round := range 40 {
				for i := range damagedKeys {
					c := request(damagedKey(i), int64(i%8+1), endless, noon.Add(time.Duration(round)*time.Second))
					if _, err := s.Consume(t.Context(), c); err != nil && !strings.Contains(err.Error(), "not found") {
						return err
					}
				}
				if err := s.Update(t.Context(), acct, func(tx core.Tx) error { return tx.PutUser(&core.User{AccountID: acct, ID: 3, Name: fmt.Sprint(round)}) }); err != nil {
					return err
				}
				if err := s.checkpoint(); err != nil {
					return err
				}
				s.watch()
			}
			return nil
		}()
	}()
	for done := false; !done; images++ {
		select {
		case err := <-written:
			if done = true; err != nil {
				t.Fatal(err)
			}
		default:
			mustImage(t, s)
		}
	}
	want, err := dump(s)
	if err = firstOf(err, s.Close()); err != nil {
		t.Fatal(err)
	}
	remove(t, glob(t, dir, "MANIFEST"))
	wantDump(t, dir, want)
}

// TestReplayWritesPages: a replay of a large event log writes pages from time to time, so its memory is bounded. After a
// kill at any of these writes, the store opens with the same data.
func TestReplayWritesPages(t *testing.T) {
	whole, want := filledStore(t, false)
	dir := copyOf(t, whole)
	if err := os.RemoveAll(databaseIn(dir)); err != nil {
		t.Fatal(err)
	}
	var moments []string
	checkpoints, records := 0, 0
	o := Options{Logger: quiet.Logger, pagesEvery: 100, failpoint: func(at failpoint) {
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
