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
	"github.com/limitkeeper/limitkeeper/storage/badgerstore/internal/table"
	"github.com/limitkeeper/limitkeeper/storage/eventlog"
)

// The database is an index of the event log, and may be thrown away at any time. When there is any doubt about its files,
// the store deletes them and rebuilds the database: from the newest whole image, and the event log from its position on.
// Without an image the event log has every record of the store, because no segment is removed before the first image.
//
// Two images are kept, so that one may be damaged. The event log is kept from the older one on.

const (
	imagesKept = 2
	imageBytes = 2 << 30     // bytes of the event log after which the next image is due, less with a small max_history
	imageCheck = time.Second // between two looks whether an image is due
)

// doubtful reports whether an error puts the database in doubt. The event log cannot be rebuilt.
func doubtful(err error) bool {
	return (isDamage(err) || errors.Is(err, errBadger)) && !errors.Is(err, eventlog.ErrDamaged)
}

// source is what a database is rebuilt from, besides the event log: the records of an image, or nothing.
type source struct {
	state   table.State
	records table.Records // nil for nothing
	stays   bool          // the source is the database itself, which was closed: see [Repair]
}

// newestSource returns the newest whole image in a directory that the event log can continue. The event log begins
// at the position from.
func newestSource(dir string, from int64, log *slog.Logger) (source, error) {
	positions, err := table.Images(imagesIn(dir))
	for _, position := range slices.Backward(positions) {
		if position < from {
			break
		}
		state, records, err := table.ReadImage(imagesIn(dir), position)
		if err == nil {
			return source{state: state, records: records}, nil
		}
		if !isDamage(err) {
			return source{}, err
		}
		log.Warn("an image of the database is damaged: it is removed, and the one before it is used", "dir", dir, "error", err)
		if err := os.Remove(table.ImagePath(imagesIn(dir), position)); err != nil {
			return source{}, err
		}
	}
	if from > firstPosition {
		return source{}, firstOf(err, &table.DamageError{File: table.ImagePrefix + "*", What: "there is no whole image of the database that the event log continues: restore a backup"})
	}
	return source{}, err
}

// create deletes the database of a store, and creates it again from a source, without the event log.
func (src source) create(o table.Options) (*table.DB, error) {
	if err := os.RemoveAll(filepath.Join(o.Dir, table.InventoryName)); err != nil { // first: without it, the other files are damaged
		return nil, err
	}
	if err := firstOf(os.RemoveAll(o.Dir), os.Mkdir(o.Dir, 0o700)); err != nil {
		return nil, err
	}
	needs := uint64(diskspace.OpeningNeeds)
	if info, err := os.Stat(table.ImagePath(imagesIn(filepath.Dir(o.Dir)), src.state.Position)); err == nil {
		needs += uint64(info.Size())
	}
	if err := diskspace.None(o.Dir).Need(needs, "the database that is rebuilt"); err != nil {
		return nil, err
	}
	return table.Create(o, src.state, src.records)
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
		return table.WriteImage(imagesIn(s.dir), mark, records, func() (table.State, error) {
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
	positions, err := table.Images(imagesIn(s.dir))
	first := s.events.From()
	if len(positions) > n {
		first = max(first, positions[len(positions)-n])
	}
	err = firstOf(err, table.RemoveImages(imagesIn(s.dir), func(position int64) bool { return position < first }))
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
	size := uint64(0)
	for _, t := range s.db.Tables() {
		size += uint64(t.OnDiskSize)
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
