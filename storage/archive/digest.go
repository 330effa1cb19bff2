package archive

import (
	"crypto/sha256"
	"encoding/hex"
	"hash"
	"io"
)

// digest computes the SHA-256 of the records of each kind, and counts them.
type digest struct {
	sums  map[Kind]hash.Hash
	count Counts
}

func newDigest() *digest { return &digest{map[Kind]hash.Hash{}, Counts{}} }

func (d *digest) add(kind Kind, line []byte) {
	sum := d.sums[kind]
	if sum == nil {
		sum = sha256.New()
		d.sums[kind] = sum
	}
	sum.Write(line)
	d.count[kind]++
}

// ofKind returns the SHA-256 of the records of a kind, "" without records.
func (d *digest) ofKind(kind Kind) string {
	if sum := d.sums[kind]; sum != nil {
		return hex.EncodeToString(sum.Sum(nil))
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
