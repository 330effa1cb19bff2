package badgerstore

import (
	"errors"
	"os"
	"testing"
	"time"

	"github.com/dgraph-io/badger/v4"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/badgerstore/internal/eventlog"
)

// testdata/format1 is a store of an earlier version that was killed: nine segments of format 1 with 391 requests of two
// keys. The mark of the last checkpoint is in the fourth segment. The earlier version read these values from the store.
const (
	format1Digest   = "89791587d07f89cf"
	format1Key      = 101 // allowed requests of "key"
	format1Segments = 9
	format1IDUsed   = 72 // the usage in the answer to the request id
)

// format1 copies the store of the earlier version to a directory.
func format1(t *testing.T) (dir string) {
	t.Helper()
	dir = t.TempDir()
	if err := os.CopyFS(dir, os.DirFS("testdata/format1")); err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestFormat1: a store of the earlier version opens with its counts and histories, counts new requests, and reads
// histories across both formats. A failure means that an upgrade loses counts.
func TestFormat1(t *testing.T) {
	dir := format1(t)
	o := Options{Logger: quiet.Logger, segmentSize: 1 << 10}
	var s *Store
	for range 2 { // opening the store again must not change the data
		s = openAlone(t, dir, o)
		if got, err := digestOfCounts(s); got != format1Digest {
			t.Fatalf("counts and histories: got the digest %s, %v, want %s", got, err, format1Digest)
		}
		abandon(t, s)
	}
	s = openAlone(t, dir, o)
	again := request("key", 1, 1000, noon)
	again.RequestID = "id"
	if v, err := s.Consume(t.Context(), again); err != nil || v.FirstTerms == nil || v.Usage.Used != format1IDUsed {
		t.Errorf("Consume with the request id of the earlier version: got %+v, %v, want the first answer", v, err)
	}
	entries := entriesOf(t, s, ofKey("key"))
	for i := range int64(100) {
		c := request("key", 1, endless, noon.AddDate(0, 0, 1))
		if v, err := s.Consume(t.Context(), c); err != nil || v.Usage.Used != format1Key+i+1 {
			t.Fatalf("Consume: got %+v, %v, want %d used", v, err, format1Key+i+1)
		}
	}
	for _, checkpointed := range []bool{false, true} {
		abandon(t, s)
		s = openAlone(t, dir, o)
		wantUsed(t, s, ofKey("key"), format1Key+100)
		if got := entriesOf(t, s, ofKey("key")); got != entries+100 {
			t.Errorf("history: got %d entries, want %d", got, entries+100)
		}
		if problems := audit(s); len(problems) > 0 {
			t.Errorf("audit: got %v", problems)
		}
		if !checkpointed {
			writeCheckpoint(t, s)
		}
	}
	if old := oldSegments(s); len(old) != format1Segments || len(s.events.Segments()) <= len(old) {
		t.Errorf("segments: got %d of format 1 of %d, want %d and some of format 2", len(old), len(s.events.Segments()), format1Segments)
	}
}

// oldSegments returns the segments of format 1.
func oldSegments(s *Store) (list []eventlog.Segment) {
	for _, g := range s.events.Segments() {
		if g.Version == 1 {
			list = append(list, g)
		}
	}
	return list
}

// TestFormat1Retention: a segment of format 1 is kept until the retention of all its events is over, also after the
// checkpoint. A segment with a record of schema 3 is kept until the time in that record. Then the segments and their
// records are removed.
func TestFormat1Retention(t *testing.T) {
	dir := format1(t)
	const id = 4 // the segment with the request id
	before := time.Now()
	s := openAlone(t, dir, quiet)
	consume(t, s, request("key", 1, endless, noon))
	writeCheckpoint(t, s)
	late := before.Add(keptLonger + time.Hour).Unix() // request keeps an hour
	check := func(when string) {
		t.Helper()
		for i, g := range oldSegments(s) {
			if pending := i > 3; pending && (g.Until < late || g.Until > late+int64(idRetention/time.Second)+3600) || (g.Hard != 0) != (i == id) {
				t.Errorf("%s: segment %d is kept until %v, want until %d or a bit more, and Hard of %d alone", when, i, g.Keep, late, id)
			}
		}
	}
	check("opened")
	abandon(t, s)
	s = openAlone(t, dir, quiet)
	check("opened again")
	abandon(t, s)

	base, ends := oldSegments(s)[id].Base, time.Now().AddDate(0, 1, 0).Unix()/3600*3600
	setRecord(t, dir, segmentKey(base), encodeNumber(ends)) // the record of schema 3
	setRecord(t, dir, at(kindSchema), encodeNumber(3))
	s = openAlone(t, dir, Options{Logger: quiet.Logger, MaxHistory: 1})
	// Opened again two days later, the segment is not kept for two more days.
	var written []byte
	err := s.db.View(func(txn *badger.Txn) (err error) {
		written, err = snapshot{txn}.get(segmentKey(base))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if k, err := decodeKeep(written, time.Now().Add(idRetention).Unix()); err != nil || k.Hard > oldSegments(s)[id].Hard { // Hard is rounded up to hours
		t.Errorf("read from its record later: got %v (%v), want at most %v", k, err, oldSegments(s)[id].Keep)
	}
	mustTrim(t, s, time.Now().Add(core.RequestIDRetention))
	if old := oldSegments(s); len(old) == 0 || old[0].Base != base || old[0].Until != ends {
		t.Errorf("after max_history: got %+v, want the segment with the request id first, until %d", old, ends)
	}
	if err := s.expire(time.Unix(ends, 0).Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	if old, records := oldSegments(s), stored(t, s, string(kindSegment)); len(old) > 0 || len(records) > 0 {
		t.Errorf("after their retention: got %d segments and %d records, want none", len(old), len(records))
	}
	if _, err := s.events.Read(base, nil); !errors.Is(err, eventlog.ErrGone) {
		t.Errorf("Read: got error %v, want %v", err, eventlog.ErrGone)
	}
	used := counterOf(t, s, ofKey("key")).Requests[core.Month]
	if used != format1Key+1 {
		t.Errorf("got %d used, want %d", used, format1Key+1)
	}
}
