package table

import (
	"log/slog"
	"testing"
)

// TestGet: Get returns the newest value of a key from the tables of a closed database, for any table. A failure means
// that a repair keeps the wrong part of the event log.
func TestGet(t *testing.T) {
	dir := t.TempDir()
	layered(t, dir, 3)
	f, err := Inspect(Options{Dir: dir, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]string{"key 7": "value 2 of key 7", "key": "", "zzz": ""} {
		if got, err := f.Get([]byte(key)); err != nil || string(got) != want {
			t.Errorf("Get %q: got %q, %v, want %q", key, got, err, want)
		}
	}
}
