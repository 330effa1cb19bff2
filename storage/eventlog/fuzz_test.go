package eventlog

import (
	"errors"
	"slices"
	"testing"
)

// FuzzOpen: with any bytes in any file, Open does not panic, the log returns no record that was not
// written, and each error is ErrDamaged. A log that opens can be written, and opens again.
func FuzzOpen(f *testing.F) {
	samples := []sample{newSample(f, closedCleanly), newSample(f, killed), newSample(f, killedSynced)}
	f.Add(uint8(0), uint8(2), uint16(dataOffset), []byte("damage"), uint16(0))
	f.Add(uint8(1), uint8(2), uint16(dataOffset+40), []byte{0, 0, 0, 0}, uint16(7))
	f.Add(uint8(2), uint8(1), uint16(0), []byte(magic), uint16(0))
	f.Add(uint8(2), uint8(0), uint16(1024), make([]byte, 4096), uint16(100))
	f.Add(uint8(0), uint8(2), uint16(0), []byte{}, uint16(65535))
	f.Fuzz(func(t *testing.T, which, file uint8, at uint16, bytes []byte, cut uint16) {
		s := samples[int(which)%len(samples)]
		name := s.files()[int(file)%len(s.files())]
		fs := s.damaged(name, func(b []byte) []byte {
			b = b[:max(0, len(b)-int(cut))]
			from := min(int(at), len(b))
			return append(slices.Clone(b[:from]), append(bytes, b[min(len(b), from+len(bytes)):]...)...)
		})
		o := s.o
		o.FS = fs
		if _, err := Verify(o, nil); err != nil {
			t.Fatalf("Verify: %v", err)
		}
		l, err := Open(o)
		if err != nil {
			if !errors.Is(err, ErrDamaged) {
				t.Fatalf("Open: %v", err)
			}
			return
		}
		list := l.Segments()
		if len(list) == 0 {
			return
		}
		got, err := replayed(l, list[0].Base)
		if err != nil && !errors.Is(err, ErrDamaged) {
			t.Fatalf("Replay: %v", err)
		}
		for position, payload := range got {
			if s.w[position] != payload {
				t.Fatalf("at %d: got %q, want %q", position, payload, s.w[position])
			}
		}
		put(t, l, written{}, "more")
		l.Abandon()
		mustOpen(t, o).Abandon()
	})
}
