package badgerstore

import (
	"archive/zip"
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"pgregory.net/rapid"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/clocktest"
	"github.com/limitkeeper/limitkeeper/storage/archive"
	"github.com/limitkeeper/limitkeeper/storage/storetest"
)

// storedBoot is the boot of the machine that has written testdata/stored.zip.
const storedBoot = 4

func storedOptions() Options {
	o := quiet
	o.Clock, o.boot = core.NewClock(clocktest.New(noon).Read, nil), storedBoot
	return o
}

// TestStored: the store opens testdata/stored.zip, which commit c3466cc0 has written: a killed store with an image, pages of counters, and requests after the
// last checkpoint. A failure means that an upgrade loses the data of customers. A new format needs a way to read the earlier one.
//
// LIMITKEEPER_RECORD=1 go test -run TestStored ./storage/badgerstore writes both files again, in the formats of the present code.
func TestStored(t *testing.T) {
	const packed, exported = "testdata/stored.zip", "testdata/stored.ndjson"
	if os.Getenv("LIMITKEEPER_RECORD") != "" {
		dir := killedAtRandom(t)
		if err := errors.Join(pack(packed, dir), os.WriteFile(exported, exportOf(t, copyOf(t, dir)), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(exported)
	if err != nil {
		t.Fatal(err)
	}
	for name, damage := range map[string]func(dir string) error{
		"as the kill left it":  func(string) error { return nil },
		"without its database": func(dir string) error { return os.RemoveAll(databaseIn(dir)) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if err := errors.Join(unpack(packed, dir), damage(dir)); err != nil {
				t.Fatal(err)
			}
			if got := exportOf(t, dir); !bytes.Equal(got, want) {
				t.Errorf("the store exports other lines:\n%s\nwant\n%s", got, want)
			}
		})
	}
}

// killedAtRandom returns a store after random operations, as a kill leaves it.
func killedAtRandom(t *testing.T) (dir string) {
	return rapid.Custom(func(run *rapid.T) string {
		from := t.TempDir()
		s := openAlone(t, from, storedOptions())
		opened := storetest.Opened{Store: s, Reopen: func(testing.TB) core.Store {
			s = openAlone(t, from, storedOptions())
			mustImage(t, s)
			return s
		}}
		storetest.FillAtRandom(run, t, &opened)
		s.watch()
		dir := t.TempDir()
		if err := s.syncEvents(); err != nil {
			t.Fatal(err)
		}
		copyKilled(t, dir, from)
		abandon(t, s)
		return dir
	}).Example(9)
}

// exportOf opens a store and returns the records of its archive, and the oldest open holds of its accounts.
func exportOf(t *testing.T, dir string) []byte {
	t.Helper()
	s := openAlone(t, dir, storedOptions())
	var b bytes.Buffer
	if _, err := archive.Export(t.Context(), s, &b, archive.ExportOptions{}); err != nil {
		t.Fatal(err)
	}
	lines := bytes.SplitAfter(b.Bytes(), []byte("\n"))
	records := bytes.Join(lines[1:len(lines)-2], nil) // the header has the time of the export, the trailer a checksum
	accounts, _, err := s.Accounts(t.Context(), everything)
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range accounts {
		holds, err := s.OldestHolds(t.Context(), a.ID)
		if err != nil {
			t.Fatal(err)
		}
		records = fmt.Appendln(records, a.ID, holds)
	}
	return records
}

// pack packs a directory into a file.
func pack(name, dir string) error {
	var b bytes.Buffer
	files := zip.NewWriter(&b)
	err := errors.Join(files.AddFS(os.DirFS(dir)), files.Close(), os.MkdirAll(filepath.Dir(name), 0o700))
	return errors.Join(err, os.WriteFile(name, b.Bytes(), 0o600))
}

// unpack unpacks what pack has packed.
func unpack(name, dir string) error {
	files, err := zip.OpenReader(name)
	if err != nil {
		return err
	}
	return errors.Join(os.CopyFS(dir, files), files.Close())
}

// TestFormatInDocs: the table of formats in docs/operations.md has the schema.
func TestFormatInDocs(t *testing.T) {
	docs, err := os.ReadFile("../../docs/operations.md")
	if row := fmt.Sprintf("\n| Badger | %d |", schema); err != nil || !bytes.Contains(docs, []byte(row)) {
		t.Errorf("docs/operations.md has no row %q, %v", row, err)
	}
}
