package table

import (
	"cmp"
	"os"
	"path/filepath"
	"slices"
)

// Badger keeps the newest transactions in memtables. Each has a write-ahead log (.mem) until Badger has written the memtable to
// a table. The log survives a kill of the process. It is not synced: after a power cut the owner rebuilds the database.
//
// Badger cuts a log off at the first damaged transaction, but reads the next log all the same. So Open keeps only the oldest log,
// and only if no table was written since the inventory. The database then has the state of an earlier moment, and the owner
// replays its own log from there.
//
// An iterator keeps the memtables that it began with, and their logs, also after they are in tables. Then the oldest log could be older than
// the tables, and records that were deleted since would be back. So the owner ends each iterator after some thousand
// records: before the tables and the inventory are two memtables ahead.

// pruneLogs removes the write-ahead logs that Badger must not read, and empty files: Badger refuses to open a directory with an
// empty log. A kill leaves one when it comes between creating a log and setting its size.
func (o *Options) pruneLogs(inv *inventory) error {
	logs, _ := filepath.Glob(filepath.Join(o.Dir, "*"+LogSuffix)) // errors are about the pattern only
	values, _ := filepath.Glob(filepath.Join(o.Dir, "*"+ValueLogSuffix))
	slices.SortFunc(logs, func(a, b string) int { return cmp.Or(cmp.Compare(len(a), len(b)), cmp.Compare(a, b)) })
	for i, path := range append(logs, values...) {
		info, err := os.Stat(path)
		if err != nil {
			return err
		}
		unread := i < len(logs) && (i > 0 || !inv.current || inv.Memtable != o.badger().MemTableSize)
		if unread || info.Size() == 0 {
			if err := os.Remove(path); err != nil {
				return err
			}
		}
	}
	return syncPath(o.Dir)
}
