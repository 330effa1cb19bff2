package badgerstore

import (
	"errors"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/limitkeeper/limitkeeper/storage/badgerstore/internal/diskspace"
	"github.com/limitkeeper/limitkeeper/storage/badgerstore/internal/eventlog"
	"github.com/limitkeeper/limitkeeper/storage/badgerstore/internal/table"
)

// The database is an index of the event log, and may be thrown away at any time. When there is any doubt about its files,
// the store deletes them and rebuilds the database: from the newest whole image, and the event log from its position on.
// Without an image the event log has every record of the store, because no segment is removed before the first image.
//
// Two images are kept, so that one may be damaged. The event log is kept from the older one on.

const (
	imagesKept  = 2
	imageBytes  = 2 << 30         // bytes of the event log after which the next image is due, less with a small max_history
	imageCheck  = time.Second     // between two looks whether an image is due
	rebuildName = "rebuild-draft" // the directory in which a new database is made
)

// doubtful reports whether an error puts the database in doubt. The event log cannot be rebuilt.
func doubtful(err error) bool {
	return (isDamage(err) || errors.Is(err, errBadger)) && !errors.Is(err, eventlog.ErrDamaged)
}

// databaseNames are patterns for the names of all files of the database, MANIFEST last.
var databaseNames = []string{
	table.InventoryName + "*", "*" + table.Suffix, "*" + logSuffix, "*" + valueLogSuffix, "DISCARD", "KEYREGISTRY*", "REWRITE-KEYREGISTRY", "MANIFEST*",
}

// filesOfDatabase returns the paths of all files of the database in a directory, MANIFEST last.
func filesOfDatabase(dir string) (paths []string, err error) {
	entries, err := os.ReadDir(dir)
	for _, pattern := range databaseNames {
		for _, entry := range entries {
			if match, _ := filepath.Match(pattern, entry.Name()); match {
				paths = append(paths, filepath.Join(dir, entry.Name()))
			}
		}
	}
	return paths, err
}

// source is what a database is rebuilt from, besides the event log: an image, or nothing.
type source struct {
	state   table.State
	records table.Records
}

// newestSource returns the newest whole image in a directory that the event log can continue. The event log begins
// at the position from.
func newestSource(dir string, from int64, log *slog.Logger) (source, error) {
	positions, err := table.Images(dir)
	for _, position := range slices.Backward(positions) {
		if position < from {
			break
		}
		state, records, err := table.ReadImage(dir, position)
		if err == nil {
			return source{state, records}, nil
		}
		if !isDamage(err) {
			return source{}, err
		}
		log.Warn("an image of the database is damaged: it is removed, and the one before it is used", "dir", dir, "error", err)
		if err := os.Remove(table.ImagePath(dir, position)); err != nil {
			return source{}, err
		}
	}
	if from > firstPosition {
		return source{}, firstOf(err, &table.DamageError{File: table.ImagePrefix + "*", What: "there is no whole image of the database that the event log continues: restore a backup"})
	}
	return noSource, err
}

// noSource is the source of a database that is rebuilt from the event log alone.
var noSource = source{records: func(func(key, value []byte) error) error { return nil }}

// rebuild deletes the database of a store, and creates it again from the newest image that the event log continues.
func rebuild(dir string, from int64, log *slog.Logger) error {
	src, err := newestSource(dir, from, log)
	if err != nil {
		return err
	}
	return src.renew(dir)
}

// renew deletes the database of a store that is not open, and rebuilds it from a source, without the event log. When it
// is interrupted, the next start rebuilds the database again: the files without MANIFEST are damage.
func (src source) renew(dir string) error {
	release, err := claim(dir)
	if err != nil {
		return err
	}
	defer release()
	if old, _, err := table.ReadState(dir); err == nil {
		src.state.Log = max(src.state.Log, old.Log) // the end of the event log stays known
	}
	return src.renewClaimed(dir)
}

func (src source) renewClaimed(dir string) error {
	draft := filepath.Join(dir, rebuildName)
	old, err := filesOfDatabase(dir)
	if err = firstOf(err, os.RemoveAll(draft)); err != nil {
		return err
	}
	for _, path := range slices.Backward(old) {
		err = firstOf(err, os.Remove(path))
	}
	needs := uint64(diskspace.OpeningNeeds)
	if info, err := os.Stat(table.ImagePath(dir, src.state.Position)); err == nil {
		needs += uint64(info.Size())
	}
	err = firstOf(err, diskspace.None(dir).Need(needs, "the database that is rebuilt"), os.Mkdir(draft, 0o700))
	if err == nil {
		err = table.Create(draft, src.state, src.records)
	}
	if err != nil {
		return err
	}
	fresh, err := filesOfDatabase(draft)
	if err != nil {
		return err
	}
	for _, path := range fresh {
		if err := os.Rename(path, filepath.Join(dir, filepath.Base(path))); err != nil {
			return err
		}
	}
	return firstOf(os.RemoveAll(draft), eventlog.OS.SyncDir(dir))
}

// findImages removes the images that the event log cannot continue, and stores the positions of the others.
func (s *Store) findImages() error { return s.keepImages(math.MaxInt) }

// writeImage writes an image of the last checkpoint, unless there is one already, and removes all images but imagesKept.
// pause is called with the number of bytes of the last records; when it returns an error, no image is written.
func (s *Store) writeImage(pause func(bytes int) error) error {
	s.retention.imaging.Lock()
	defer s.retention.imaging.Unlock()
	var mark int64
	err := s.inView(func(r view) (err error) {
		if mark, err = r.number(at(kindCheckpoint)); err != nil || mark <= s.retention.newestImage.Load() || mark < s.events.From() {
			return err
		}
		if err := s.roomForImage(); err != nil {
			return err
		}
		records := func(fn func(key, value []byte) error) error {
			return batches(func(read func(view) error) error { return read(r) }, nil, pause, func(p path, value []byte) error { return fn(p, value) })
		}
		s.failpoint(failSnapshot)
		return table.WriteImage(s.dir, mark, records, func() (table.State, error) {
			s.failpoint(failSnapshot)
			err := s.syncEvents()
			return table.State{Log: s.events.Durable(), Time: s.clock.Load()}, err
		})
	})
	if err != nil {
		return err
	}
	return s.keepImages(imagesKept)
}

// keepImages removes the images that the event log cannot continue, and all but the newest n.
func (s *Store) keepImages(n int) error {
	s.retention.running.Lock()
	defer s.retention.running.Unlock()
	return s.keepImagesLocked(n)
}

func (s *Store) keepImagesLocked(n int) error {
	positions, err := table.Images(s.dir)
	first := s.events.From()
	if len(positions) > n {
		first = max(first, positions[len(positions)-n])
	}
	err = firstOf(err, table.RemoveImages(s.dir, func(position int64) bool { return position < first }))
	positions = slices.DeleteFunc(positions, func(position int64) bool { return position < first })
	oldest, newest := int64(0), int64(0)
	if len(positions) > 0 {
		oldest, newest = positions[0], positions[len(positions)-1]
	}
	s.retention.imaged.Store(oldest)
	s.retention.newestImage.Store(newest)
	return err
}

// roomForImage returns an error unless the disk has room for another image. On a full disk the image may take the last
// free bytes: only history that is in an image can be removed.
func (s *Store) roomForImage() error {
	size, err := tableBytes(s.dir)
	if err != nil {
		return err
	}
	if !s.space.Full() {
		size += uint64(s.space.MinFree())
	}
	return s.space.Need(size, "an image of the database")
}

// imageDue reports whether an image is to be written: much of the event log follows the last one, or history that is to be
// removed is kept for it.
func (s *Store) imageDue() bool {
	after := s.checkpointer.mark.Load() - s.retention.newestImage.Load()
	broken := s.retention.newestImage.Load() < s.events.From() && s.events.From() > firstPosition
	return after >= min(imageBytes, s.retention.maxBytes.Load()/4) || after > 0 && (broken || s.retention.imageWanted.Swap(false))
}

// tableBytes returns the size of all tables in a directory.
func tableBytes(dir string) (sum uint64, err error) {
	paths, err := filepath.Glob(filepath.Join(dir, "*"+table.Suffix))
	for _, path := range paths {
		if info, err := os.Stat(path); err == nil { // otherwise the table was compacted and deleted
			sum += uint64(info.Size())
		}
	}
	return sum, err
}
