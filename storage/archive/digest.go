package archive

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"io"
)

// digest is a sink that computes the SHA-256 of the records of each kind, and counts them.
type digest struct{ kinds map[Kind]*Writer }

func newDigest() *digest { return &digest{map[Kind]*Writer{}} }

// Put implements [Sink].
func (d *digest) Put(ctx context.Context, r Record) error {
	w := d.kinds[r.Kind]
	if w == nil {
		w = newWriter(io.Discard)
		d.kinds[r.Kind] = w
	}
	return w.Put(ctx, r)
}

// counts returns the number of records of each kind.
func (d *digest) counts() Counts {
	n := Counts{}
	for kind, w := range d.kinds {
		n[kind] = w.count[kind]
	}
	return n
}

// ofKind returns the SHA-256 of the records of a kind.
func (d *digest) ofKind(kind Kind) string {
	if w := d.kinds[kind]; w != nil {
		return hex.EncodeToString(w.sum.Sum(nil))
	}
	return ""
}

// sum returns the SHA-256 of all records.
func (d *digest) sum() string {
	all := sha256.New()
	for _, kind := range Kinds() {
		io.WriteString(all, d.ofKind(kind)+"\n")
	}
	return hex.EncodeToString(all.Sum(nil))
}
