package badgerstore

import (
	"context"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dgraph-io/badger/v4"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/badgerstore/internal/diskspace"
	"github.com/limitkeeper/limitkeeper/storage/badgerstore/internal/eventlog"
)

// The store removes history in whole segments of the event log, oldest first: when the retention of all events in a
// segment is over, when the event log is larger than max_history, or when the disk is full. The events of a removed
// segment must be in the checkpoint, otherwise counts would be lost. For the last two reasons, a segment with a
// remembered request id stays, otherwise a repeated request would count twice.

// retention guards the removal of segments. Removal makes room on a full disk, and Badger may be waiting for room. So
// removal must not wait for Badger: it does not wait for readers, and does not commit while running is held.
type retention struct {
	running      sync.Mutex   // held while segments are removed
	imaging      sync.Mutex   // held while an image is written
	readers      inFlight     // readers of counters; each needs the events after the mark at which it began
	maxBytes     atomic.Int64 // max_history: the largest size of all segments in bytes
	removedEarly atomic.Bool  // segments were removed before their retention was over
	imaged       atomic.Int64 // the position of the oldest image, 0 without an image: see image.go
	newestImage  atomic.Int64
	imageWanted  atomic.Bool // segments could not be removed, because an image needs them
	imageFailed  atomic.Bool // the last attempt to write an image has failed
}

// viewCounters runs fn on a view. fn reads counters from their pages and from the events after the pages. These
// events are not removed while fn runs.
func (s *Store) viewCounters(fn func(view) error) error {
	defer s.retention.readers.end(s.retention.readers.begin(s.checkpointer.mark.Load))
	return s.inView(fn)
}

// SetMaxHistory changes [Options.MaxHistory] of an open store. 0 means half of the disk: a fixed size would cut the 30 days of
// a busy service short, even on a disk with enough space. The other half is for the database and other programs. The store
// removes segments beyond the limit after the next checkpoint.
func (s *Store) SetMaxHistory(bytes int64) {
	if bytes <= 0 {
		bytes = math.MaxInt64
		if _, size, err := diskspace.Space(s.dir); err == nil {
			bytes = int64(size / 2)
		}
	}
	s.retention.maxBytes.Store(bytes)
}

// HistoryCap implements [core.CappedHistory]: the number of entries has no bound.
func (*Store) HistoryCap() int { return 0 }

// HistoryCut implements [core.CappedHistory]. A segment has events of many histories, so any history may be cut once a
// segment was removed early.
func (s *Store) HistoryCut(context.Context, core.CounterID) (bool, error) {
	return s.retention.removedEarly.Load(), nil
}

// HistoryExcess implements [core.BoundedHistory]: by how much the segments exceed max_history, or the free space falls short. Expired
// segments at the start of the log do not count: they go first, after the next checkpoint.
func (s *Store) HistoryExcess() int64 {
	removable, bytes, segments, now := int64(0), int64(0), 0, s.now().Unix()
	for _, g := range s.events.Segments() {
		if size := g.End - g.Base; segments == 0 && g.Until < now {
			removable += size
		} else {
			bytes, segments = bytes+size, segments+1
		}
	}
	if segments < 2 {
		return 0 // the segment that is being written stays
	}
	excess := bytes - s.retention.maxBytes.Load()
	if free, err := s.freeSpace(); err == nil {
		excess = max(excess, s.space.Enough()-removable-int64(min(free, math.MaxInt64)))
	}
	return excess
}

var _ core.BoundedHistory = (*Store)(nil)

// expire removes the segments whose retention is over at a time.
func (s *Store) expire(now time.Time) error {
	s.retention.running.Lock()
	defer s.retention.running.Unlock()
	return s.remove(s.removable(func(g eventlog.Segment) bool { return g.Until < now.Unix() }))
}

// trim removes the oldest segments while the event log is larger than max_history.
func (s *Store) trim(now time.Time) error {
	s.retention.running.Lock()
	defer s.retention.running.Unlock()
	_, err := s.removeEarly(now, "it is larger than max_history", s.historyBytes()-s.retention.maxBytes.Load())
	return err
}

// makeSpace closes the snapshot, and removes the older image and then the oldest segments, when the free space of the disk is less than
// diskspace.Enough. It returns the free bytes afterwards.
func (s *Store) makeSpace(now time.Time, free func() (uint64, error)) (uint64, error) {
	wanted := uint64(s.space.Enough())
	n, err := free()
	if err != nil || n >= wanted {
		return n, err
	}
	if s.dropSnapshot() {
		return n, nil
	}
	s.retention.running.Lock()
	defer s.retention.running.Unlock()
	if s.retention.imaged.Load() != s.retention.newestImage.Load() {
		err := s.keepImagesLocked(1)
		s.log.Warn("the older image of the database is removed", "dir", s.dir, "reason", "the disk is full", "error", err)
		if n, err = free(); err != nil || n >= wanted {
			return n, err
		}
	}
	missing, err := s.removeEarly(now, "the disk is full", int64(wanted-n))
	s.warn("the disk is full, and old history was not removed: the store tries again", err)
	if missing > 0 {
		s.checkpointer.request() // a checkpoint makes more segments removable
	}
	return free()
}

// removeEarly removes the oldest segments without a remembered request id, at least bytes in all. It returns the
// number of bytes that it could not remove, 0 or less when it has removed enough. The first removal logs the reason.
func (s *Store) removeEarly(now time.Time, reason string, bytes int64) (missing int64, err error) {
	missing = bytes
	list := s.removable(func(g eventlog.Segment) bool {
		if missing <= 0 || g.Hard >= now.Unix() {
			return false
		}
		missing -= g.End - g.Base
		return true
	})
	if missing > 0 && s.retention.imaged.Load() < s.checkpointer.mark.Load() {
		s.retention.imageWanted.Store(true)
	}
	if len(list) == 0 {
		return missing, nil
	}
	if !s.retention.removedEarly.Swap(true) {
		s.log.Warn("the oldest history is removed before its retention is over: raise max_history or free disk space", "dir", s.dir, "reason", reason,
			"max_history", s.retention.maxBytes.Load())
	}
	return missing, s.remove(list)
}

// removable returns the segments that may be removed now, oldest first. The events of each are in all images, and before the mark
// at which any reader began, and mayGo accepts it. removable stops at the first
// segment that must stay, because older events of a history are found through younger ones. The last segment stays.
func (s *Store) removable(mayGo func(eventlog.Segment) bool) (list []eventlog.Segment) {
	all := s.events.Segments()
	imaged := s.retention.readers.oldest(s.retention.imaged.Load())
	for _, g := range all[:max(0, len(all)-1)] {
		if g.End > imaged || !mayGo(g) {
			break
		}
		list = append(list, g)
	}
	return list
}

// remove removes segments, oldest first. The caller holds retention.running.
func (s *Store) remove(list []eventlog.Segment) error {
	for _, g := range list {
		s.failpoint(failExpire)
		if err := s.events.Remove(g.End); err != nil {
			return err
		}
	}
	return nil
}

var _ core.CappedHistory = (*Store)(nil)

// A sweep removes the index records of expired request ids, and expired days of the archive. It follows each
// scrub. The store does not use Badger's TTL, because Badger reads the clock of the machine: a wrong clock would
// hide records that are still needed, and a compaction would drop them.

// sweep removes the records that are expired at a time. It calls pause with the size of the records that it has read.
func (s *Store) sweep(now time.Time, pause func(bytes int) error) error {
	remembered, oldest := s.rememberedFrom(now), core.DateOf(now.Add(-archiveTime))
	err := s.removeIf(at(kindRequestID), pause, func(_ path, value []byte) (bool, error) {
		position, err := decodeNumber(value)
		return position < remembered, err
	})
	if err != nil {
		return err
	}
	return s.removeIf(at(kindDay), pause, func(p path, _ []byte) (bool, error) { return dateIn(p) < oldest, nil })
}

// rememberedFrom returns the position of the oldest event whose request id may still be remembered at a time.
func (s *Store) rememberedFrom(now time.Time) (position int64) {
	for _, g := range s.events.Segments() {
		if position = g.Base; g.Hard >= now.Unix() {
			break
		}
	}
	return position
}

// removeIf removes the records whose paths begin with prefix and for which expired returns true.
func (s *Store) removeIf(prefix path, pause func(bytes int) error, expired func(p path, value []byte) (bool, error)) error {
	var old []path
	return batches(s.inView, prefix, func(bytes int) error { // a view for each batch: a long one would keep every version of the pages
		err := s.removeAll(old, expired)
		old = nil
		return firstOf(err, pause(bytes))
	}, func(p path, value []byte) error {
		remove, err := expired(p, value)
		if remove {
			old = append(old, slices.Clone(p))
		}
		return err
	})
}

// removeAll removes the records of paths, except records that are not expired: they were written again since
// they were read.
func (s *Store) removeAll(old []path, expired func(p path, value []byte) (bool, error)) error {
	if len(old) == 0 {
		return nil
	}
	return s.commitTxn(func(txn *badger.Txn) error {
		for _, p := range old {
			value, err := view{txn}.get(p)
			if err != nil {
				return err
			}
			remove, err := expired(p, value)
			if err == nil && remove {
				err = txn.Delete(p)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}
