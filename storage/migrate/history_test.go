package migrate

import (
	"context"
	"fmt"
	"reflect"
	"runtime"
	"testing"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/memstore"
)

// long is a source whose user 1 has a history of any number of generated entries. As a target it keeps the newest entry
// and checks the order.
type long struct {
	core.Importer
	total int

	largestPage int // in entries
	written     int
	largest     uint64 // memory in use while it is written
	last        core.Entry
	wrong       string
}

func (s *long) entry(n int) core.Entry {
	return core.Entry{At: noon.Add(time.Duration(n) * time.Millisecond), KeyID: "key_1", UserID: 1, Endpoint: fmt.Sprint("/", n), Cost: 1}
}

func (s *long) History(ctx context.Context, of core.CounterID, since time.Time, p core.Page) ([]core.Entry, int, error) {
	if of.UserID != 1 {
		return nil, 0, nil
	}
	s.largestPage = max(s.largestPage, p.Size)
	var list []core.Entry
	for n := s.total - 1 - p.Offset(); n >= 0 && len(list) < p.Size; n-- {
		list = append(list, s.entry(n))
	}
	return list, s.total, nil
}

func (s *long) Counters(_ context.Context, ids []core.CounterID) ([]core.Counter, error) {
	return make([]core.Counter, len(ids)), nil
}

// longTo is long as a target.
type longTo struct{ *long }

func (s longTo) History(_ context.Context, of core.CounterID, _ time.Time, _ core.Page) ([]core.Entry, int, error) {
	if of.UserID != 1 || s.written == 0 {
		return nil, 0, nil
	}
	return []core.Entry{s.last}, s.written, nil
}

func (s longTo) SetHistory(ctx context.Context, of core.CounterID, entries []core.Entry, keep time.Duration) error {
	s.written = 0
	return s.AppendHistory(ctx, of, entries, keep)
}

func (s longTo) AppendHistory(_ context.Context, _ core.CounterID, entries []core.Entry, _ time.Duration) error {
	for _, e := range entries {
		if want := s.entry(s.written); !reflect.DeepEqual(e, want) && s.wrong == "" {
			s.wrong = fmt.Sprintf("entry %d: got %+v, want %+v", s.written, e, want)
		}
		s.written++
		s.last = e
	}
	if s.written%100_000 < core.MaxImport {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		s.largest = max(s.largest, m.HeapAlloc)
	}
	return nil
}

// The memory of a Run does not grow with the length of a history. All these entries take more than 30 MiB.
func TestLongHistory(t *testing.T) {
	const total, most = 300_003, 20 << 20
	source := &long{Importer: acme(t), total: total}
	target := longTo{&long{Importer: memstore.New(), total: total}}
	var before runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	if _, err := Run(t.Context(), source, target, Options{Workers: 1}); err != nil {
		t.Fatalf("Run: %v", err)
	}
	if target.written != total || target.wrong != "" {
		t.Errorf("got %d entries, want %d; %s", target.written, total, target.wrong)
	}
	if source.largestPage > core.MaxImport {
		t.Errorf("entries on a page: got %d, want at most %d", source.largestPage, core.MaxImport)
	}
	if used := int64(target.largest) - int64(before.HeapAlloc); used > most {
		t.Errorf("memory: got %d bytes more than before, want at most %d", used, most)
	}
}
