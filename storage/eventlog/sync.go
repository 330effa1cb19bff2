package eventlog

import "time"

// Sync syncs all written records, and writes the status. The owner of the log calls it once a
// second. A failed sync is final.
func (l *Log) Sync() error {
	l.syncing.Lock()
	err := l.syncLocked()
	if g := l.current.Load(); err == nil && g != nil && g.status.synced != l.durable.Load() {
		_ = g.writeStatus(l.statusLocked(g)) // after an error, the old status stays true
	}
	l.syncing.Unlock()
	if err != nil {
		l.fail(err)
	}
	return err
}

// statusLocked returns the new status of the last segment.
func (l *Log) statusLocked(g *segment) status {
	s := g.status
	s.synced = l.durable.Load()
	return s
}

// syncLocked syncs the last segment. Earlier segments were synced before the next one began.
func (l *Log) syncLocked() error {
	end := l.written.Load()
	if l.syncErr != nil || end == l.durable.Load() {
		return l.syncErr
	}
	if g := l.current.Load(); g != nil {
		began := time.Now()
		if l.syncErr = synced(g.file.Sync()); l.syncErr != nil {
			return l.syncErr
		}
		if l.o.OnSync != nil {
			l.o.OnSync(time.Since(began))
		}
	}
	l.durable.Store(end)
	return nil
}

// rotate syncs the last segment, and begins the next one at a position. It may be called again after an error.
func (l *Log) rotate(base int64) error {
	l.syncing.Lock()
	defer l.syncing.Unlock()
	if err := l.syncLocked(); err != nil {
		return err
	}
	last := l.current.Load()
	h, first := header{base: base, seed: l.seed}, status{synced: base, oldest: base}
	if last != nil {
		h.prevBase, h.prevCRC, h.prevHours = last.base, last.crc, last.hours
		first.oldest = l.From()
	}
	g, err := createSegment(l.o, h, first)
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
	return nil
}
