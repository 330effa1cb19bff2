package table

import (
	"encoding/binary"
	"io"
	"os"
	"path/filepath"
	"sync"

	"github.com/dgraph-io/badger/v4"
	"github.com/dgraph-io/badger/v4/pb"
	"google.golang.org/protobuf/proto"
)

// manifestMagic is the length of the magic number of a manifest, in bytes. Change sets follow, each with its length and checksum.
const manifestMagic = 8

// When a compaction cannot create a table (no inode, no file descriptor, no mapping, EIO), Badger 4.9.6 drops the
// error and deletes the merged tables: all entries of the missing table are lost. But it logs each table that it has built, and the
// end of each compaction, and the manifest lists each table that was created. [compactions] compares the two numbers.
// TestCompactionWithoutTable fails when another version of Badger works differently.
type compactions struct {
	mu    sync.Mutex
	built map[any]int // tables built by running compactions, by the number of the compactor
	ended int         // tables built by ended compactions

	// Of the caller of lost.
	created int         // tables that the manifest has from compactions
	read    int64       // bytes of the manifest that were read
	file    os.FileInfo // of the manifest
}

// tableBuilt counts a table of a running compaction.
func (c *compactions) tableBuilt(compactor any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.built[compactor]++
}

// compacted ends a compaction. A failed one has not changed the manifest.
func (c *compactions) compacted(compactor any, failed bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !failed {
		c.ended += c.built[compactor]
	}
	delete(c.built, compactor)
}

// lost returns damage when a compaction has lost a table. A compaction changes the manifest before it ends.
func (c *compactions) lost(dir string) error {
	c.mu.Lock()
	ended := c.ended
	c.mu.Unlock()
	file, err := os.Open(filepath.Join(dir, badger.ManifestFilename))
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }()
	info, err := file.Stat()
	if err != nil {
		return err
	}
	if c.file != nil && !os.SameFile(c.file, info) { // Badger has rewritten it as one change set
		c.file, c.created, c.read = info, ended, info.Size()
		return nil
	}
	c.file = info
	b := make([]byte, max(0, info.Size()-c.read))
	if _, err := io.ReadFull(io.NewSectionReader(file, c.read, int64(len(b))), b); err != nil {
		return err
	}
	for len(b) >= 8 && int64(len(b)) >= 8+int64(binary.BigEndian.Uint32(b)) {
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
			c.created += created
		}
		c.read += int64(length)
		b = b[length:]
	}
	if c.created < ended {
		return damage("*"+Suffix, "compactions have built %d tables and created %d: look for a lack of inodes or file descriptors, and for I/O errors", ended, c.created)
	}
	return nil
}
