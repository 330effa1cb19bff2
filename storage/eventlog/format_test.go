package eventlog

import (
	"errors"
	"maps"
	"slices"
	"testing"
)

// TestLaterFormat: a log with a segment of a later format is refused and not changed. A failure means that a repair sets
// aside what a later version wrote.
func TestLaterFormat(t *testing.T) {
	s := newSample(t, killed)
	for _, name := range s.files() {
		fs := s.damaged(name, func(b []byte) []byte {
			b = slices.Clone(b)
			b[len(magic)] = format + 1
			le.PutUint32(b[headerSize-4:], checksum(b[:headerSize-4], 0, int64(le.Uint64(b[8:]))))
			return b
		})
		before := fs.clone()
		o := s.o
		o.FS = fs
		for call, run := range map[string]func() error{
			"Open":   func() error { _, err := Open(o); return err },
			"Verify": func() error { _, err := Verify(o, nil); return err },
			"Cut":    func() error { _, err := Cut(o, Run{firstPosition, firstPosition}); return err },
		} {
			var later *FormatError
			if err := run(); !errors.As(err, &later) || *later != (FormatError{name, format + 1}) || errors.Is(err, ErrDamaged) {
				t.Errorf("%s of %s: got %v, want a FormatError and no damage", call, name, err)
			}
		}
		if !maps.EqualFunc(fs.now, before.now, func(a, b *memFile) bool { return string(a.now) == string(b.now) }) {
			t.Errorf("%s: files were changed", name)
		}
	}
}
