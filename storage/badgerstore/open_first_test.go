package badgerstore

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/dgraph-io/badger/v4"

	"github.com/limitkeeper/limitkeeper/storage/badgerstore/internal/table"
)

// TestInterruptedFirstOpening: a process is killed at any moment of creating a store. The directory that it leaves can be
// opened.
func TestInterruptedFirstOpening(t *testing.T) {
	made, moments := t.TempDir(), []string{}
	_ = openAlone(t, made, Options{Logger: quiet.Logger, failpoint: func(at failpoint) {
		if at == failCommit || at == failCommitted { // the schema is written
			dir := t.TempDir()
			copyKilled(t, dir, made)
			moments = append(moments, dir)
		}
	}})
	if len(moments) != 2 {
		t.Fatalf("got %d moments, want 2", len(moments))
	}
	// The order in which the files are created, after the directory of the event log. Each file is empty at first.
	order := []string{badger.ManifestFilename, badger.KeyRegistryFileName, "00001" + table.LogSuffix, "DISCARD", "000001" + table.ValueLogSuffix, table.InventoryName}
	drafts := map[string]string{ // the names of files while they are written
		badger.ManifestFilename: "MANIFEST-REWRITE", badger.KeyRegistryFileName: badger.KeyRegistryRewriteFileName,
		table.InventoryName: table.InventoryName + "-REWRITE"}
	for i := len(order) - 1; i >= 0; i-- {
		before := moments[0]
		if i < len(order)-1 {
			before = moments[len(moments)-1]
		}
		empty, without := copyOf(t, before), copyOf(t, before)
		path := filepath.Join(databaseIn(empty), order[i])
		err := firstOf(os.Truncate(path, 0), os.Remove(filepath.Join(databaseIn(without), order[i])))
		if draft := drafts[order[i]]; err == nil && draft != "" {
			err = os.Rename(path, filepath.Join(databaseIn(empty), draft))
		}
		if err != nil {
			t.Fatal(err)
		}
		moments = append(moments, empty, without)
	}
	spare := copyOf(t, moments[0])
	if err := os.WriteFile(filepath.Join(spare, eventLogDir, "spare"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for i, dir := range append(moments, spare) {
		if err := os.MkdirAll(filepath.Join(dir, eventLogDir), 0o700); err != nil {
			t.Fatal(err)
		}
		s, err := open(dir, quiet)
		if err != nil {
			t.Errorf("moment %d, with %v: %v", i, filesIn(t, dir), err)
			continue
		}
		known(t, s, "key")
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestMissingDatabase: Open rebuilds a database that has lost its manifest, or all its files.
func TestMissingDatabase(t *testing.T) {
	for name, lose := range map[string][]string{
		"the manifest":                 {badger.ManifestFilename},
		"manifest and inventory":       {badger.ManifestFilename, table.InventoryName},
		"manifest and tables":          {badger.ManifestFilename, "*.sst"},
		"all but the inventory":        {badger.ManifestFilename, "*.sst", "*.vlog", "KEYREGISTRY"},
		"everything but the event log": {badger.ManifestFilename, "*.sst", "*.vlog", "KEYREGISTRY", "DISCARD", table.InventoryName},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			s := openAlone(t, dir, quiet)
			known(t, s, "key")
			consume(t, s, request("key", 1, endless, noon))
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			for _, pattern := range lose {
				files, _ := filepath.Glob(filepath.Join(databaseIn(dir), pattern))
				for _, path := range files {
					if err := os.Remove(path); err != nil {
						t.Fatal(err)
					}
				}
			}
			s = openAlone(t, dir, quiet)
			wantUsed(t, s, ofKey("key"), 1)
		})
	}
}
