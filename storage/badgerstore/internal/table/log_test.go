package table

import (
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"
)

// logText is the text of a log that several goroutines write.
type logText struct {
	mu   sync.Mutex
	text strings.Builder
}

// Write implements [io.Writer].
func (l *logText) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *logText) count(text string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.text.String(), text)
}

// TestFlushFails: the flush of a memtable fails, and a compaction succeeds before the next attempt. The log has one line
// when the failure begins, and one line when the memtable is in a table. A failure means a line for each compaction, or a
// line that tables are written again while the newest records are in no table.
func TestFlushFails(t *testing.T) {
	dir := t.TempDir()
	layered(t, dir, 1)
	db := mustOpen(t, dir)
	if err := errors.Join(compact(db), db.Close()); err != nil {
		t.Fatal(err)
	}
	layered(t, dir, 1) // a table in the level above the other
	var logged logText
	db, err := Open(Options{Dir: dir, Logger: slog.New(slog.NewTextHandler(&logged, nil)), Filler: []byte("Z")})
	if err != nil {
		t.Fatal(err)
	}
	block(t, db, func(n int) bool { return n == 0 })
	before := db.log().newestVersion()
	const begins, ends = "tables cannot be written", "tables are written again"
	if err := db.Flush(func(*Txn) error { return nil }); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the failure in the log", func() bool { return logged.count(begins) > 0 })
	tables := len(db.ids())
	if err := db.Flatten(1); err != nil || len(db.ids()) >= tables+1 {
		t.Fatalf("Flatten: got %v, %d tables after %d", err, len(db.ids()), tables)
	}
	if n := logged.count(ends); n != 0 {
		t.Errorf("after a compaction: got %d lines that tables are written again, want none before the memtable is flushed", n)
	}
	eventually(t, "the end in the log", func() bool {
		if err := db.Watch(); err != nil {
			t.Fatal(err)
		}
		return logged.count(ends) > 0
	})
	if n := logged.count("level="); n != 2 || logged.count("level=WARN") != 1 || db.log().newestVersion() <= before {
		t.Errorf("logged:\n%s\nwant one line for each change", logged.text.String())
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
}

// eventually waits until a condition holds.
func eventually(t *testing.T, condition string, holds func() bool) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(time.Minute); !holds(); <-tick.C {
		if time.Now().After(deadline) {
			t.Fatalf("not true after a minute: %s", condition)
		}
	}
}
