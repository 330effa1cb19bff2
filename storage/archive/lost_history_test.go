package archive

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/memstore"
)

// fullDisk is a store that has removed all but the newest entry of each history.
type fullDisk struct{ *memstore.Store }

func (s fullDisk) History(ctx context.Context, of core.CounterID, since time.Time, p core.Page) ([]core.Entry, int, error) {
	list, n, err := s.Store.History(ctx, of, since, core.Page{Number: 1, Size: 1})
	if p.Offset() > 0 {
		list = nil
	}
	return list, min(n, 1), err
}

func (fullDisk) HistoryCap() int                                          { return 0 }
func (fullDisk) HistoryCut(context.Context, core.CounterID) (bool, error) { return true, nil }

// A restore that cannot keep the histories of a backup fails its comparison, and says why. An import keeps the newest entries, and says so.
func TestLostHistory(t *testing.T) {
	lines := strings.Split(forgery, "\n")
	entry := lines[len(lines)-1]
	file := forged(t, append(lines, strings.Replace(entry, "11:00:00Z", "11:00:01Z", 1))...)
	from := FromArchive(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(file)), nil })
	_, err := Import(t.Context(), fullDisk{memstore.New()}, from, ImportOptions{EmptyOnly: true, Retention: 20 * 365 * 24 * time.Hour})
	if !errors.Is(err, ErrDiffers) || !strings.Contains(err.Error(), "the store has kept 1 of 2 entries of the histories") {
		t.Errorf("restore: got %v", err)
	}
	report, err := Import(t.Context(), fullDisk{memstore.New()}, from, ImportOptions{Retention: 20 * 365 * 24 * time.Hour})
	if err != nil || report.Events != 1 {
		t.Errorf("import: got %d events, %v; want 1 of 2", report.Events, err)
	}
}
