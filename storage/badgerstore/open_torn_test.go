package badgerstore

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// smallSegments are options for an event log with small segments.
var smallSegments = Options{Logger: quiet.Logger, segmentSize: 1 << 10}

// segmentFiles returns the paths of the segments of a store, oldest first.
func segmentFiles(t testing.TB, dir string) []string {
	t.Helper()
	list, err := filepath.Glob(filepath.Join(dir, eventLogDir, "*"+segmentSuffix))
	if err != nil || len(list) == 0 {
		t.Fatalf("segments in %s: got %v, %v", dir, list, err)
	}
	return list
}

// endless is a limit that no test reaches.
const endless = 1 << 40

// consumeUntil makes requests until the event log has n segments. It returns the number of requests.
func consumeUntil(t testing.TB, s *Store, n int) (requests int64) {
	t.Helper()
	for ; len(s.events.Segments()) < n; requests++ {
		consume(t, s, request("key", 1, endless, noon))
	}
	return requests
}

// sixSegments makes a store with six segments in a directory. The checkpoint includes the first segment and the start of
// the second one.
func sixSegments(t *testing.T, dir string) {
	t.Helper()
	s := openAlone(t, dir, smallSegments)
	known(t, s, "key")
	consumeUntil(t, s, 2)
	for range 3 {
		consume(t, s, request("key", 1, endless, noon))
	}
	writeCheckpoint(t, s)
	consumeUntil(t, s, 6)
	abandon(t, s)
}

// TestDamagedMiddleSegment: Open refuses a missing, cut or damaged segment before the last one in one line that names the
// file. It removes no file, because no power cut can cause this damage.
func TestDamagedMiddleSegment(t *testing.T) {
	whole := t.TempDir()
	sixSegments(t, whole)
	files := segmentFiles(t, whole)
	change := func(fn func([]byte) []byte) func(string) error {
		return func(path string) error {
			b, err := os.ReadFile(path)
			return firstOf(err, os.WriteFile(path, fn(b), 0o600))
		}
	}
	for name, damage := range map[string]func(path string) error{
		"missing": os.Remove,
		"cut off": change(func(b []byte) []byte { return b[:len(b)-1] }),
		"cut off between two events": change(func(b []byte) []byte {
			last := segmentData
			for end := segmentData; end < len(b); {
				last = end
				end += blockOverhead + int(binary.LittleEndian.Uint32(b[end+4:]))
			}
			return b[:last]
		}),
		"without a header": change(func(b []byte) []byte { return b[:20] }),
		"empty":            change(func(b []byte) []byte { return nil }),
		"a flipped bit in": change(func(b []byte) []byte { b[len(b)-5] ^= 1; return b }),
		"zeros in":         change(func(b []byte) []byte { clear(b[len(b)-200:]); return b }),
	} {
		for i := 1; i < len(files)-1; i++ {
			t.Run(fmt.Sprintf("%s %d", name, i), func(t *testing.T) {
				dir := t.TempDir()
				copyDatabase(t, dir, whole)
				copyEventLog(t, dir, whole)
				name := filepath.Base(files[i])
				if err := damage(filepath.Join(dir, eventLogDir, name)); err != nil {
					t.Fatal(err)
				}
				before := len(segmentFiles(t, dir))
				s, err := open(dir, smallSegments)
				if err == nil {
					abandon(t, s)
				}
				if err == nil || !strings.Contains(err.Error(), name) || strings.Contains(err.Error(), "\n") {
					t.Errorf("open: got error %v, want one line that names %s", err, name)
				}
				if after := len(segmentFiles(t, dir)); after != before {
					t.Errorf("segments: got %d, want %d as before", after, before)
				}
			})
		}
	}
}

// TestMissingSegment: Open refuses a missing segment in one line that names the file, also when its events are in the
// checkpoint. A failure means that histories are short, and that repeated requests count again.
func TestMissingSegment(t *testing.T) {
	whole := t.TempDir()
	sixSegments(t, whole)
	files := segmentFiles(t, whole)
	for i := range files {
		files[i] = filepath.Base(files[i])
	}
	for name, test := range map[string]struct {
		from, to int // the range of missing segments
		want     string
	}{
		"the first":               {0, 1, files[0] + ", byte 0: the file is missing"},
		"the first two":           {0, 2, files[0] + ", byte 0: the file is missing"},
		"the last":                {5, 6, files[5] + ", byte 0: the file is missing"},
		"the last, from the mark": {1, 6, files[1] + ", byte 0: the file is missing"},
		"all":                     {0, 6, files[0] + ", byte 0: the log has no file, but was known to have files"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			copyDatabase(t, dir, whole)
			copyEventLog(t, dir, whole)
			for _, file := range segmentFiles(t, dir)[test.from:test.to] {
				if err := os.Remove(file); err != nil {
					t.Fatal(err)
				}
			}
			s, err := open(dir, smallSegments)
			if err == nil {
				abandon(t, s)
			}
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("open: got error %v, want %q", err, test.want)
			}
		})
	}
}
