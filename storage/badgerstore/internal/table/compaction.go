package table

import (
	"encoding/binary"
	"os"
	"path/filepath"

	"github.com/dgraph-io/badger/v4"
	"github.com/dgraph-io/badger/v4/pb"
	"google.golang.org/protobuf/proto"
)

// manifestMagic is the length of the magic number of a manifest, in bytes. Change sets follow, each with its length and checksum.
const manifestMagic = 8

// When a compaction cannot create a table (no inode, no file descriptor, no mapping, EIO), Badger 4.9.6 drops the
// error and deletes the merged tables: all entries of the missing table are lost. But it logs each table that it has built, and the
// end of each compaction, and the manifest lists each table that was created. lost compares the two numbers.
// TestCompactionWithoutTable fails when another version of Badger works differently.

// lost updates INVENTORY after a change of the manifest, and returns damage when a compaction has lost a table. The caller holds mu.
func (db *DB) lost() error {
	ended, _ := db.log().built() // first: a compaction changes the manifest before it ends
	info, err := os.Stat(filepath.Join(db.o.Dir, badger.ManifestFilename))
	if err == nil && info.Size() != db.kept.Length {
		err = db.update()
	}
	if err == nil && db.created < ended {
		err = damage("*"+Suffix, "compactions have built %d tables and created %d: look for a lack of inodes or file descriptors, and for I/O errors", ended, db.created)
	}
	return err
}

// update counts the tables that compactions have created since the last update, and updates the inventory. The caller holds mu.
func (db *DB) update() error {
	if db.doubted {
		return nil
	}
	before, _ := db.log().built()
	manifest, err := readManifest(db.o.Dir)
	if err != nil {
		return err
	}
	if db.kept.matches(manifest) != nil || db.read > len(manifest) { // Badger has rewritten it as one change set
		ended, running := db.log().built()
		db.created, db.read = ended+running, len(manifest)
	}
	for b := manifest[db.read:]; len(b) >= 8 && len(b) >= 8+int(binary.BigEndian.Uint32(b)); b = manifest[db.read:] {
		length := 8 + int(binary.BigEndian.Uint32(b))
		var set pb.ManifestChangeSet
		if err := proto.Unmarshal(b[8:length], &set); err != nil {
			return damage(badger.ManifestFilename, "%v", err)
		}
		created := 0
		for _, change := range set.Changes {
			if change.Op == pb.ManifestChange_CREATE {
				created++
			}
		}
		if created < len(set.Changes) { // otherwise a memtable was flushed
			db.created += created
		}
		db.read += length
	}
	if ended, running := db.log().built(); running == 0 && ended == before { // without a running compaction the manifest has all of them
		db.created = min(db.created, ended)
	}
	return db.kept.describe(manifest, db.o.Dir)
}
