package eventlog

import (
	"errors"
	"fmt"
)

// Replay calls fn with each record from a position on, in order. The payload is valid until fn
// returns. The position need not be the position of a record. Replay ends at the first error of
// fn, and after the last record that was written before the call.
func (l *Log) Replay(from int64, fn func(position int64, payload []byte) error) error {
	list := l.segments.snapshot()
	if len(list) > 0 && from < list[0].first {
		return &DamageError{list[0].name(), 0, fmt.Sprintf("the log begins here, and is needed from position %d on", from)}
	}
	for i := range list {
		g := &list[i]
		if g.end <= from {
			continue
		}
		x, err := g.walk(g.first, g.end, func(position int64, payload []byte) error {
			if position < from {
				return nil
			}
			return fn(position, payload)
		})
		if err != nil {
			return err
		}
		if x.end < g.end {
			return g.damage(x.end, "a block is invalid")
		}
	}
	return nil
}

// Close writes and syncs all records and closes the files. No other method may run during or after
// Close. After an error the unwritten records are lost.
func (l *Log) Close() error {
	err := errors.Join(l.Flush(), l.Sync())
	l.Abandon()
	return err
}

// Abandon closes the files without writing, like a kill of the process.
func (l *Log) Abandon() {
	l.mu.Lock()
	if l.failed == nil {
		l.failed = ErrClosed
	}
	l.stopped.Store(true)
	l.mu.Unlock()
	l.syncing.Lock()
	if l.syncErr == nil {
		l.syncErr = ErrClosed
	}
	l.syncing.Unlock()
	for _, g := range l.segments.snapshot() {
		_ = g.file.Close()
	}
}
