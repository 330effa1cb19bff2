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
	keys, want := [][]byte{[]byte("key 7"), []byte("key"), []byte("zzz")}, []string{"value 2 of key 7", "", ""}
	all, err := f.Get(keys...)
	if err != nil {
		t.Fatal(err)
	}
	for i, key := range keys {
		if got, err := f.Get(key); err != nil || string(got[0]) != want[i] || string(all[i]) != want[i] {
			t.Errorf("Get %q: got %q alone and %q with the others, %v, want %q", key, got, all[i], err, want[i])
		}
	}
}
