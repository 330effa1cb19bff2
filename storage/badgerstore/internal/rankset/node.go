package rankset

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"math/bits"
	"slices"
)

// branch is a root or a mid: its children by ascending position. A child without members is left out.
type branch []child

// child is a node below a branch, with its number of members.
type child struct {
	position int64
	total    int
}

func (b branch) find(position int64) (int, bool) {
	return slices.BinarySearchFunc(b, position, func(c child, p int64) int {
		return cmp.Compare(c.position, p)
	})
}

func (b branch) has(position int64) bool {
	_, ok := b.find(position)
	return ok
}

// of returns the number of members in the child at a position.
func (b branch) of(position int64) int {
	if i, ok := b.find(position); ok {
		return b[i].total
	}
	return 0
}

func (b branch) total() (n int) {
	for _, c := range b {
		n += c.total
	}
	return n
}

// adjust adds by to the number of members in the child at a position, and returns the branch.
func (b branch) adjust(position int64, by int) branch {
	i, ok := b.find(position)
	if !ok {
		return slices.Insert(b, i, child{position, by})
	}
	if b[i].total += by; b[i].total == 0 {
		return slices.Delete(b, i, i+1)
	}
	return b
}

// encode appends the branch to record. It returns record for an empty branch.
func (b branch) encode(record []byte) []byte {
	var before int64
	for _, c := range b {
		record = binary.AppendUvarint(record, uint64(c.position-before))
		record = binary.AppendUvarint(record, uint64(c.total))
		before = c.position
	}
	return record
}

func decodeBranch(record []byte) (branch, error) {
	b := branch{}
	var before int64
	for r := bytes.NewReader(record); r.Len() > 0; {
		d, err := binary.ReadUvarint(r)
		total, err2 := binary.ReadUvarint(r)
		if err != nil || err2 != nil {
			return nil, ErrDamaged
		}
		before += int64(d)
		b = append(b, child{before, int(total)})
	}
	return b, nil
}

// leaf has a bit for each of 1,024 consecutive numbers: whether the number is a member.
type leaf [1 << leafBits / 64]uint64

// set adds n, or removes n when member is false, and reports whether the leaf has changed.
func (l *leaf) set(n int64, member bool) bool {
	word, bit := &l[n&(1<<leafBits-1)/64], uint64(1)<<(n&63)
	if (*word&bit != 0) == member {
		return false
	}
	*word ^= bit
	return true
}

func (l *leaf) has(n int64) bool { return l[n&(1<<leafBits-1)/64]&(1<<(n&63)) != 0 }

func (l *leaf) total() (n int) {
	for _, word := range l {
		n += bits.OnesCount64(word)
	}
	return n
}

// page appends members to numbers, after skipping offset members, until numbers has size members.
// first is the smallest number that the leaf covers.
func (l *leaf) page(first int64, numbers []int64, offset, size int) []int64 {
	for i, word := range l {
		for ; word != 0 && len(numbers) < size; word &= word - 1 {
			if offset > 0 {
				offset--
				continue
			}
			numbers = append(numbers, first+int64(i*64+bits.TrailingZeros64(word)))
		}
	}
	return numbers
}

// encode returns the record of the leaf, without zero bytes at its end, and nil for an empty leaf.
func (l *leaf) encode() []byte {
	var record []byte
	for _, word := range l {
		record = binary.LittleEndian.AppendUint64(record, word)
	}
	record = bytes.TrimRight(record, "\x00")
	if len(record) == 0 {
		return nil
	}
	return record
}

func (l *leaf) decode(record []byte) error {
	var whole [len(l) * 8]byte
	if copy(whole[:], record) < len(record) {
		return ErrDamaged
	}
	for i := range l {
		l[i] = binary.LittleEndian.Uint64(whole[8*i:])
	}
	return nil
}
