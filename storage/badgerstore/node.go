package badgerstore

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"math/bits"
	"slices"
)

// branch is a node of a family that has others below it, by their position. A
// child with nothing in it is none.
type branch []child

// child is a node below a branch, and how many numbers are in it.
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

// of returns how many numbers are in a child.
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

// adjust changes how many numbers are in a child, and returns the branch.
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

// encode appends the branch to record. It returns nil for an empty one.
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
			return nil, errDamaged
		}
		before += int64(d)
		b = append(b, child{before, int(total)})
	}
	return b, nil
}

// leaf says which of 1,024 consecutive numbers are in a family.
type leaf [1 << leafBits / 64]uint64

// set makes a number a member or not, and reports whether that changed anything.
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

// page appends the members after the first offset until there are size numbers.
// first is the smallest number that the leaf could hold.
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

// encode returns the record of the leaf, nil for an empty one. Words of zeros at
// the end are left out.
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
		return errDamaged
	}
	for i := range l {
		l[i] = binary.LittleEndian.Uint64(whole[8*i:])
	}
	return nil
}
