package reserve

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestNoMappings: mapWith waits until a file can be mapped. While a store is being opened, mapWith returns the error. A
// failure means that the process dies, or that each attempt leaves a file behind.
func TestNoMappings(t *testing.T) {
	var logged bytes.Buffer
	r := &Reserve{log: slog.New(slog.NewTextHandler(&logged, nil))}
	calls := 0
	atThird := func() (uintptr, error) {
		if calls++; calls%3 != 0 {
			return 0, unix.ENOMEM
		}
		return 7, nil
	}
	if at, err := r.mapWith(atThird); at != 7 || err != nil || calls != 3 {
		t.Errorf("got %d, %v after %d calls, want the mapping of the third", at, err, calls)
	}
	if text := logged.String(); strings.Count(text, "level=ERROR") != 1 || strings.Count(text, "level=WARN") != 1 {
		t.Errorf("logged:\n%s\nwant one line for each change", text)
	}
	r.Opening.Store(true)
	if _, err := r.mapWith(atThird); !errors.Is(err, unix.ENOMEM) {
		t.Errorf("while the store is opened: got error %v, want %v", err, unix.ENOMEM)
	}
}
