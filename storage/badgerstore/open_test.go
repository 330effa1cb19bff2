package badgerstore

import (
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/dgraph-io/badger/v4"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/badgerstore/internal/table"
)

// wantOneLine fails unless an error of Open is one line that names the directory.
func wantOneLine(t *testing.T, err error, dir string) {
	t.Helper()
	if err == nil || strings.Contains(err.Error(), "\n") || !strings.Contains(err.Error(), dir) {
		t.Errorf("Open: got error %q, want one line that names %s", err, dir)
	}
}

// TestOpenInUse: the second Open of a directory returns ErrInUse, and the open store still works.
func TestOpenInUse(t *testing.T) {
	dir := t.TempDir()
	s := openIn(t, dir, Options{})
	withAccount(t, s)
	_, err := Open(dir, Options{})
	if !errors.Is(err, ErrInUse) {
		t.Errorf("Open: got error %v, want %v", err, ErrInUse)
	}
	wantOneLine(t, err, dir)
	if _, err := s.AccountByName(t.Context(), acct); err != nil {
		t.Errorf("AccountByName: %v", err)
	}
}

// TestNoDirectory: Open returns an error of one line for a path to a file, and for a directory that cannot be created.
func TestNoDirectory(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{file, filepath.Join(file, "below")} {
		_, err := Open(dir, Options{})
		wantOneLine(t, err, dir)
	}
}

// TestNewDirectory: Open creates the directory and its parents, and no other user can read the directory.
func TestNewDirectory(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a b", "[c]", "store")
	openIn(t, dir, Options{})
	info, err := os.Stat(dir)
	if err != nil {
		t.Fatal(err)
	}
	if got := info.Mode().Perm(); got != 0o700 {
		t.Errorf("permissions: got %o, want 700", got)
	}
}

// TestLaterSchema: Open refuses a store of a later version, and does not change the store. The schema of a young store is only
// in the event log.
func TestLaterSchema(t *testing.T) {
	dir := t.TempDir()
	if err := mustOpen(t, dir, Options{}).Close(); err != nil {
		t.Fatal(err)
	}
	setRecord(t, dir, at(kindSchema), encodeNumber(schema+1))
	_, err := Open(dir, Options{})
	wantOneLine(t, err, dir)
	if !strings.Contains(err.Error(), "later version") {
		t.Errorf("Open: got error %v, want it to say that a later version wrote the store", err)
	}
	setRecord(t, dir, at(kindSchema), encodeNumber(schema))
	s := openAlone(t, dir, Options{})
	w := newWrites()
	w.put(at(kindSchema), encodeNumber(schema+1))
	if err := s.commit(w); err != nil {
		t.Fatal(err)
	}
	young := t.TempDir()
	copyKilled(t, young, dir)
	if _, err := Open(young, Options{}); err == nil || !strings.Contains(err.Error(), "later version") {
		t.Errorf("Open of a young store: got error %v, want it to say that a later version wrote the store", err)
	}
}

// Open refuses a store with an earlier schema, which lacks sets of the present schema.
func TestEarlierSchema(t *testing.T) {
	dir := t.TempDir()
	if err := mustOpen(t, dir, Options{}).Close(); err != nil {
		t.Fatal(err)
	}
	setRecord(t, dir, at(kindSchema), encodeNumber(schema-1))
	_, err := Open(dir, Options{})
	wantOneLine(t, err, dir)
	if !strings.Contains(err.Error(), "before the first release") {
		t.Errorf("Open: got error %v, want it to say that a build before the first release wrote the store", err)
	}
}

// TestOtherFiles: a store may be in a directory with other files, such as the Badger database of another program, and changes none. Open
// refuses a directory whose database directory belongs to another program. A failure means that they are deleted.
func TestOtherFiles(t *testing.T) {
	dir, taken := t.TempDir(), t.TempDir()
	for _, of := range []string{dir, databaseIn(taken)} {
		other, err := badger.Open(badger.DefaultOptions(of).WithLogger(nil))
		if err == nil {
			err = other.Close()
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	before := contents(t, taken)
	_, err := Open(taken, Options{})
	if wantOneLine(t, err, taken); !errors.Is(err, errForeign) || !maps.Equal(contents(t, taken), before) {
		t.Errorf("Open: got error %v, or other files, want %v and no change", err, errForeign)
	}
	before = contents(t, dir)
	s := openAlone(t, dir, Options{})
	withAccount(t, s)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	after := contents(t, dir)
	maps.DeleteFunc(after, func(name, _ string) bool { return strings.Contains(name, string(filepath.Separator)) })
	if !maps.Equal(after, before) {
		t.Errorf("got the files %q, want %q", slices.Sorted(maps.Keys(after)), slices.Sorted(maps.Keys(before)))
	}
}

// setRecord writes a record to the database of a store that is not open.
func setRecord(t *testing.T, dir string, p path, value []byte) {
	t.Helper()
	state, _, err := table.ReadState(databaseIn(dir))
	if err != nil {
		t.Fatal(err)
	}
	db, err := table.Open(table.Options{Dir: databaseIn(dir), Logger: quiet.Logger, Boot: table.Boot()})
	if err != nil {
		t.Fatalf("badger.Open: %v", err)
	}
	err = db.Update(func(txn *badger.Txn) error { return txn.Set(p, value) })
	db.Finish(state)
	if err := errors.Join(err, db.Close()); err != nil {
		t.Fatalf("write a record: %v", err)
	}
}

// TestEmptyLogs: a kill can leave empty logs of Badger. The store still opens, without loss.
func TestEmptyLogs(t *testing.T) {
	dir := t.TempDir()
	s := mustOpen(t, dir, Options{})
	withAccount(t, s)
	if err := s.Close(); err != nil {
		t.Fatalf("Close: %v", err)
	}
	for _, name := range []string{"00099.mem", "00100.mem", "000099.vlog"} {
		if err := os.WriteFile(filepath.Join(databaseIn(dir), name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s = openIn(t, dir, Options{})
	if _, err := s.AccountByName(t.Context(), acct); err != nil {
		t.Errorf("AccountByName: %v", err)
	}
	update(t, s, withKeys(1, 3))
}

// TestDamagedFiles: Open refuses a damaged file in one line, or opens the store. A damaged file never ends the process.
func TestDamagedFiles(t *testing.T) {
	whole, dir := t.TempDir(), t.TempDir()
	s := mustOpen(t, dir, Options{})
	withAccount(t, s)
	update(t, s, withKeys(1, 1000))
	if err := s.Close(); err != nil {
		t.Fatalf("Close: %v", err)
	}
	s = openIn(t, dir, Options{})
	update(t, s, withKeys(2, 1000))
	for range 100 {
		consume(t, s, request(newKey(2, 0).ID, 2, 1000, noon))
	}
	if err := firstOf(s.syncEvents(), os.CopyFS(whole, os.DirFS(dir))); err != nil { // the files that a kill leaves
		t.Fatal(err)
	}
	if err := s.Close(); err != nil { // it would take the damage of the copies for its own
		t.Fatal(err)
	}
	refused, kinds := 0, map[string]bool{}
	for _, file := range filesIn(t, whole) {
		kinds[filepath.Ext(file)] = true
		for change, damage := range fileChanges {
			dir := t.TempDir()
			if err := os.CopyFS(dir, os.DirFS(whole)); err != nil {
				t.Fatal(err)
			}
			name := filepath.Join(dir, file)
			content, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(name, damage(content), 0o600); err != nil {
				t.Fatal(err)
			}
			s, err := Open(dir, quiet)
			if err != nil {
				refused++
				wantOneLine(t, err, dir)
				continue
			}
			if _, _, err := s.Keys(t.Context(), acct, core.KeyFilter{}, core.Page{Number: 1, Size: 1000}); err != nil && !isUnavailable(err) {
				t.Errorf("%s %s: Keys: got error %v, want none or %v", change, file, err, core.ErrUnavailable)
			}
			_ = s.Close()
		}
	}
	if !kinds[".sst"] || !kinds[table.LogSuffix] || !kinds[table.ValueLogSuffix] || !kinds[segmentSuffix] {
		t.Errorf("kinds of files: got %v, want tables and logs", kinds)
	}
	if refused < 3 {
		t.Errorf("refused: got %d of the damaged stores, want at least 3: the damage has no effect", refused)
	}
}

// filesIn returns the paths of all files below a directory.
func filesIn(t *testing.T, dir string) (names []string) {
	t.Helper()
	err := fs.WalkDir(os.DirFS(dir), ".", func(name string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			names = append(names, name)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}

// fileChanges damage the content of a file.
var fileChanges = map[string]func([]byte) []byte{
	"garbage in": func(b []byte) []byte {
		for i := range b {
			b[i] = byte(i * 7)
		}
		return b
	},
	"half of": func(b []byte) []byte { return b[:len(b)/2] },
	"a flipped bit in": func(b []byte) []byte {
		if len(b) > 0 {
			b[len(b)/2] ^= 4
		}
		return b
	},
}

// TestValueLogIsEmpty: the largest record is not large enough for the value log. A failure means that the value log needs
// garbage collection, which the store does not run.
func TestValueLogIsEmpty(t *testing.T) {
	dir := t.TempDir()
	s := mustOpen(t, dir, Options{})
	withAccount(t, s)
	huge := &core.Plan{AccountID: acct, ID: "plan", Description: new(strings.Repeat("\x01", 4096))}
	for range 100 {
		huge.Features = append(huge.Features, strings.Repeat("\U0010ffff", 255))
	}
	update(t, s, func(tx core.Tx) error { return tx.PutPlan(huge) })
	update(t, s, withKeys(1, many))
	if err := s.Close(); err != nil {
		t.Fatalf("Close: %v", err)
	}
	logs, err := filepath.Glob(filepath.Join(databaseIn(dir), "*"+table.ValueLogSuffix))
	if err != nil || len(logs) == 0 {
		t.Fatalf("value logs: got %v, %v", logs, err)
	}
	for _, log := range logs {
		if info, err := os.Stat(log); err != nil || info.Size() > 20 {
			t.Errorf("%s: got %d bytes, %v, want a header of 20", log, info.Size(), err)
		}
	}
}

// TestCloseAgain: Close of a closed store does nothing.
func TestCloseAgain(t *testing.T) {
	s := mustOpen(t, t.TempDir(), Options{})
	for range 3 {
		if err := s.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	}
	s.SetDurability(Power)
}
