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
	"github.com/limitkeeper/limitkeeper/storage/eventlog"
	"github.com/limitkeeper/limitkeeper/storage/record"
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
// a busy service short, even on a disk with enough space. The other half is for the database and other programs.
// The store removes segments beyond the limit that are in all images and in the checkpoint.
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

// HistoryExcess implements [core.BoundedHistory].
func (s *Store) HistoryExcess() int64 {
	if s.enter() != nil {
		return 0
	}
	defer s.leave()
	free, err := s.freeSpace()
	if err != nil {
		free = math.MaxInt64
	}
	return s.excess(s.now(), free)
}

var _ core.BoundedHistory = (*Store)(nil)

// excess returns by how much the segments exceed max_history, or the free space falls short. Expired segments at the start of the log
// do not count: they go first.
func (s *Store) excess(now time.Time, free uint64) int64 {
	expired, bytes, segments := int64(0), int64(0), 0
	for _, g := range s.events.Segments() {
		if size := g.End - g.Base; segments == 0 && g.Until < now.Unix() {
			expired += size
		} else {
			bytes, segments = bytes+size, segments+1
		}
	}
	if segments < 2 {
		return 0 // the segment that is being written stays
	}
	return max(bytes-s.retention.maxBytes.Load(), s.space.Enough()-expired-int64(min(free, math.MaxInt64)))
}

// removeHistory removes the oldest segments: those whose retention is over at a time, and others while the event log is larger than
// max_history, or less than diskspace.Enough is free on the disk. On a full disk it first closes the snapshot, and removes the
// older image. The first removal before the end of a retention is logged.
func (s *Store) removeHistory(now time.Time) error {
	free, err := s.freeSpace()
	isFull := err == nil && free < uint64(s.space.Enough())
	if isFull && s.dropSnapshot() {
		return nil
	}
	s.retention.running.Lock()
	defer s.retention.running.Unlock()
	if isFull && s.retention.imaged.Load() != s.retention.newestImage.Load() {
		err := s.keepImagesLocked(1)
		s.log.Warn("the older image of the database is removed", "dir", s.dir, "reason", "the disk is full", "error", err)
		free, _ = s.freeSpace() // 0 after an error
	}
	if err != nil {
		free = math.MaxInt64
	}
	missing, early := s.excess(now, free), false
	list := s.removable(func(g eventlog.Segment) bool {
		if g.Until < now.Unix() {
			return true
		}
		if missing <= 0 || g.Hard >= now.Unix() {
			return false
		}
		missing, early = missing-(g.End-g.Base), true
		return true
	})
	if missing > 0 && s.retention.imaged.Load() < s.checkpointer.mark.Load() {
		s.retention.imageWanted.Store(true)
	}
	if missing > 0 && isFull {
		s.checkpointer.request() // a checkpoint makes more segments removable
	}
	if early && !s.retention.removedEarly.Swap(true) {
		reason := map[bool]string{true: "the disk is full", false: "it is larger than max_history"}[isFull]
		s.log.Warn("the oldest history is removed before its retention is over: raise max_history or free disk space", "dir", s.dir, "reason", reason,
			"max_history", s.retention.maxBytes.Load())
	}
	return firstOf(s.remove(list), err)
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

// A sweep removes the index records of expired request ids, and expired days and hours. It follows each
// scrub. The store does not use Badger's TTL, because Badger reads the clock of the machine: a wrong clock would
// hide records that are still needed, and a compaction would drop them.

// sweep removes the records that are expired at a time. It calls pause with the size of the records that it has read.
func (s *Store) sweep(now time.Time, pause func(bytes int) error) error {
	remembered := s.rememberedFrom(now)
	err := removeIf(s.commitTxn, at(kindRequestID), pause, func(_ path, value []byte) (bool, error) {
		position, err := decodeNumber(value)
		return position < remembered, err
	})
	if err != nil {
		return err
	}
	err = removeIf(s.commitTxn, at(kindDay), pause, func(p path, _ []byte) (bool, error) { return expired(dateIn(p), now), nil })
	if err != nil {
		return err
	}
	return removeIf(s.commitTxn, at(kindDeleted), pause, func(p path, _ []byte) (bool, error) { return expired(record.ChunkEnd(chunkIn(p)), now), nil })
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

// removeIf removes the records whose paths begin with prefix and for which remove returns true, in transactions of commit. One transaction reads a batch and
// removes its records, so a record that is written again in between stays. After each batch removeIf calls pause with the bytes that it has read.
func removeIf(commit func(func(*badger.Txn) error) error, prefix path, pause func(bytes int) error, remove func(p path, value []byte) (bool, error)) error {
	var old []path
	in := func(read func(view) error) error {
		return commit(func(txn *badger.Txn) error {
			err := read(view{txn})
			for _, p := range old {
				err = firstOf(err, txn.Delete(p))
			}
			old = nil
			return err
		})
	}
	return batches(in, prefix, pause, func(p path, value []byte) error {
		isOld, err := remove(p, value)
		if isOld {
			old = append(old, slices.Clone(p))
		}
		return err
	})
}
