package eventlog

import (
	"errors"
	"os"
	"path/filepath"
	"time"
)

// Sync syncs all written records, and writes the status. The owner of the log calls it once a
// second. A failed sync is final.
func (l *Log) Sync() error {
	err := l.syncAndNote()
	if err != nil {
		l.setState(err)
	}
	return err
}

func (l *Log) syncAndNote() error {
	l.syncing.Lock()
	defer l.syncing.Unlock()
	if err := l.syncLocked(); err != nil {
		return err
	}
	if g := l.current.Load(); g != nil && g.status != l.statusLocked(g) {
		_ = g.writeStatus(l.statusLocked(g)) // the old status stays true
	}
	return nil
}

// statusLocked returns the new status of the last segment.
func (l *Log) statusLocked(g *segment) status {
	s := g.status
	s.synced, s.written, s.boot = l.durable.Load(), l.written.Load(), l.o.Boot
	return s
}

// statusSoon writes the status if the last one is StatusEvery old, or schedules it. The leader calls it after its
// write, and writes the status itself: a write of another goroutine and that of the leader wait for each other in the file
// system, which made BenchmarkDecide 7 % slower (process, callers=64).
// now is the time since processStart.
func (l *Log) statusSoon(now time.Duration) {
	if l.o.StatusEvery <= 0 {
		return
	}
	if l.statusAge(now) >= l.o.StatusEvery && l.syncing.TryLock() {
		l.writeStatusLocked()
		l.syncing.Unlock()
		return
	}
	if !l.statusScheduled.Swap(true) {
		time.AfterFunc(l.o.StatusEvery, l.writeScheduledStatus)
	}
}

// writeScheduledStatus writes the status when no leader does.
func (l *Log) writeScheduledStatus() {
	l.statusScheduled.Store(false)
	l.syncing.Lock()
	defer l.syncing.Unlock()
	if l.current.Load().status.written == l.written.Load() {
		return
	}
	if l.statusAge(sinceStart()) >= l.o.StatusEvery {
		l.writeStatusLocked()
	} else if !l.statusScheduled.Swap(true) {
		time.AfterFunc(l.o.StatusEvery, l.writeScheduledStatus)
	}
}

// statusAge returns the time since the last attempt to write the status.
func (l *Log) statusAge(now time.Duration) time.Duration {
	return now - time.Duration(l.statusAt.Load())
}

// writeStatusLocked writes a status with the written position.
func (l *Log) writeStatusLocked() {
	l.statusAt.Store(int64(sinceStart()))
	if g := l.current.Load(); l.syncErr == nil {
		_ = g.writeStatus(l.statusLocked(g)) // the old status stays true
	}
}

// processStart is the zero of Log.statusAt.
var processStart = time.Now()

func sinceStart() time.Duration { return time.Since(processStart) }

// syncLocked syncs the last segment. Earlier segments were synced before the next one began.
func (l *Log) syncLocked() error {
	end := l.written.Load()
	if l.syncErr != nil || end == l.durable.Load() {
		return l.syncErr
	}
	if g := l.current.Load(); g != nil {
		began := sinceStart()
		if l.syncErr = synced(g.file.Sync()); l.syncErr != nil {
			return l.syncErr
		}
		if l.o.OnSync != nil {
			l.o.OnSync(sinceStart() - began)
		}
	}
	l.durable.Store(end)
	return nil
}

// rotate syncs the last segment, and begins the next one at a position.
func (l *Log) rotate(base int64) error {
	l.syncing.Lock()
	defer l.syncing.Unlock()
	if err := l.syncLocked(); err != nil {
		return err
	}
	last := l.current.Load()
	g, err := l.begin(last, base)
	if err != nil {
		return err
	}
	l.segments.add(g)
	l.current.Store(g)
	if last != nil {
		s := l.statusLocked(last)
		s.sealed = true
		_ = last.writeStatus(s) // after an error, Open can detect less damage
	}
	return l.openSpare(false)
}

// begin begins the segment that follows another one. It may be called again after an error.
func (l *Log) begin(last *segment, base int64) (g *segment, err error) {
	if l.begun == nil {
		if l.begun, err = l.fromSpare(last, base); err != nil {
			return nil, err
		}
	}
	err = l.syncDir()
	if isDescriptors(err) { // opening the directory has failed; any other error is an error of the sync
		return nil, err
	}
	if err != nil {
		return nil, synced(err)
	}
	g, l.begun = l.begun, nil
	return g, nil
}

// fromSpare makes the spare file the segment that follows another one.
func (l *Log) fromSpare(last *segment, base int64) (*segment, error) {
	g := &segment{header: header{base: base, seed: l.seed}, path: filepath.Join(l.o.Dir, segmentName(base)), end: base, room: base}
	s := status{synced: base, oldest: base, boot: l.o.Boot}
	if last != nil {
		g.prevBase, g.prevCRC, g.prevHours = last.base, last.crc, last.hours
		s.oldest = l.segments.oldest()
	}
	if err := l.openSpare(true); err != nil {
		return nil, err
	}
	g.file = l.spare
	if _, err := g.file.WriteAt(g.encode(), 0); err != nil {
		return nil, err
	}
	if err := errors.Join(g.writeStatus(s), g.file.Truncate(dataOffset)); err != nil {
		return nil, err
	}
	if err := g.file.Sync(); err != nil {
		return nil, synced(err)
	}
	if err := l.o.FS.Rename(l.sparePath(), g.path); err != nil {
		return nil, err
	}
	l.spare = nil
	return g, nil
}

// syncDir makes the names in the directory durable.
func (l *Log) syncDir() error {
	if l.dir != nil {
		return l.dir.Sync()
	}
	return l.o.FS.SyncDir(l.o.Dir)
}

func (l *Log) sparePath() string { return filepath.Join(l.o.Dir, spareName) }

// openSpare opens the file of the next segment ahead, so that the next segment can begin when
// descriptors have run out. It ignores errors unless the file is needed now.
func (l *Log) openSpare(needed bool) (err error) {
	if l.spare != nil {
		return nil
	}
	l.spare, err = l.o.FS.Open(l.sparePath(), os.O_RDWR|os.O_CREATE)
	if err != nil {
		l.spare = nil
	}
	if !needed {
		return nil
	}
	return err
}
