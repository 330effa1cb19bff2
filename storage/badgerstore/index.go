package badgerstore

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
)

// A family is a set of numbers, those of the resources that a list shows. It is
// kept so that its size, and the numbers from any position on, are found by a
// handful of look-ups, however large it is. It has two forms.
//
// A small family is one record with all its numbers. Most are: the keys of a user.
//
// A large family is a tree of three levels. The root has the total of each mid, a
// mid that of each leaf, and a leaf is which of 1,024 consecutive numbers are in
// the set. Adding a number writes three records of at most some hundred bytes.
// They are read one by one and never iterated over: the root is rewritten with
// every change, and an iterator would step over every version that is still in
// memory.
//
//	node   path below the family       value
//	root   0                           0 and the numbers, as uvarints each less the
//	                                   one before; or 1 and its children
//	mid    1, number >> 17             its children: for each, as uvarints, its
//	                                   position less the one before, and its total
//	leaf   2, number >> 10             16 words of 64 bits, little endian
const (
	nodeRoot = 0
	nodeMid  = 1
	nodeLeaf = 2

	formSmall = 0
	formTree  = 1

	smallMax = 64 // numbers in a small family

	leafBits = 10 // of a number, in a leaf
	midBits  = 17 // of a number, below a mid
)

// errDamaged means that the records of a set do not fit together.
var errDamaged = errors.New("an index is damaged")

// family is a set of numbers as it is read and changed. Its nodes are kept until
// they are written.
type family struct {
	base  path
	read  func(path) ([]byte, error) // nil for what does not exist
	small []int64                    // when root is nil
	root  branch
	mids  map[int64]branch
	leafs map[int64]*leaf

	changed bool
	dirty   map[int64]bool // leafs, and with them their mids
}

// openFamily reads the root of a family.
func openFamily(base path, read func(path) ([]byte, error)) (*family, error) {
	f := &family{base: base, read: read}
	raw, err := read(f.node(nodeRoot, 0))
	if err != nil || len(raw) == 0 {
		return f, err
	}
	switch raw[0] {
	case formSmall:
		f.small, err = decodeNumbers(raw[1:])
	case formTree:
		f.grow()
		f.root, err = decodeBranch(raw[1:])
	default:
		err = errDamaged
	}
	return f, f.about(err)
}

// node returns the path of a node. That of the root has no position.
func (f *family) node(level byte, position int64) path {
	p := append(slices.Clone(f.base), level)
	if level == nodeRoot {
		return p
	}
	return p.number(position)
}

func (f *family) about(err error) error {
	if err != nil {
		return fmt.Errorf("family %q: %w", f.base, err)
	}
	return nil
}

// grow turns the family into an empty tree.
func (f *family) grow() {
	f.root, f.small = branch{}, nil
	f.mids, f.leafs, f.dirty = map[int64]branch{}, map[int64]*leaf{}, map[int64]bool{}
}

// count returns how many numbers the family has.
func (f *family) count() int {
	if f.root == nil {
		return len(f.small)
	}
	return f.root.total()
}

// has reports whether a number is in the family.
func (f *family) has(n int64) (bool, error) {
	if f.root == nil {
		_, has := slices.BinarySearch(f.small, n)
		return has, nil
	}
	l, err := f.leaf(n >> leafBits)
	return err == nil && l.has(n), err
}

// add puts a number into the family. It may be there already.
func (f *family) add(n int64) error {
	if f.root != nil {
		return f.set(n, true)
	}
	i, has := slices.BinarySearch(f.small, n)
	if has {
		return nil
	}
	f.changed = true
	f.small = slices.Insert(f.small, i, n)
	if len(f.small) <= smallMax {
		return nil
	}
	numbers := f.small
	f.grow()
	for _, n := range numbers {
		if err := f.set(n, true); err != nil {
			return err
		}
	}
	return nil
}

// remove takes a number out of the family. It need not be there.
func (f *family) remove(n int64) error {
	if f.root != nil {
		return f.set(n, false)
	}
	if i, has := slices.BinarySearch(f.small, n); has {
		f.changed = true
		f.small = slices.Delete(f.small, i, i+1)
	}
	return nil
}

// set makes a number a member of the tree or not.
func (f *family) set(n int64, member bool) error {
	l, err := f.leaf(n >> leafBits)
	if err != nil {
		return err
	}
	m, err := f.mid(n >> midBits)
	if err != nil {
		return err
	}
	if !l.set(n, member) {
		return nil
	}
	by := 1
	if !member {
		by = -1
	}
	f.mids[n>>midBits] = m.adjust(n>>leafBits, by)
	f.root = f.root.adjust(n>>midBits, by)
	f.dirty[n>>leafBits], f.changed = true, true
	return nil
}

// mid returns a node of the middle level, an empty one where there is none.
func (f *family) mid(position int64) (branch, error) {
	if m, ok := f.mids[position]; ok || !f.root.has(position) {
		return m, nil
	}
	raw, err := f.read(f.node(nodeMid, position))
	if err != nil {
		return nil, err
	}
	m, err := decodeBranch(raw)
	if err != nil || m.total() != f.root.of(position) {
		return nil, f.about(errDamaged)
	}
	f.mids[position] = m
	return m, nil
}

// leaf returns a leaf, an empty one where there is none.
func (f *family) leaf(position int64) (*leaf, error) {
	if l, ok := f.leafs[position]; ok {
		return l, nil
	}
	m, err := f.mid(position >> (midBits - leafBits))
	if err != nil {
		return nil, err
	}
	l := &leaf{}
	if m.has(position) {
		raw, err := f.read(f.node(nodeLeaf, position))
		if err != nil {
			return nil, err
		}
		if err := l.decode(raw); err != nil || l.total() != m.of(position) {
			return nil, f.about(errDamaged)
		}
	}
	f.leafs[position] = l
	return l, nil
}

// page returns at most size numbers in ascending order, after the first offset.
func (f *family) page(offset, size int) ([]int64, error) {
	if offset >= f.count() {
		return nil, nil
	}
	if f.root == nil {
		return slices.Clone(f.small[offset:][:min(size, len(f.small)-offset)]), nil
	}
	size = min(size, f.count()-offset)
	numbers := make([]int64, 0, size)
	for _, c := range f.root {
		if offset >= c.total {
			offset -= c.total
			continue
		}
		m, err := f.mid(c.position)
		if err != nil {
			return nil, err
		}
		if numbers, err = f.pageOfMid(m, numbers, offset, size); err != nil || len(numbers) == size {
			return numbers, err
		}
		offset = 0
	}
	return numbers, nil
}

// pageOfMid appends numbers below a mid, after the first offset, until there are
// size of them.
func (f *family) pageOfMid(m branch, numbers []int64, offset, size int) ([]int64, error) {
	for _, c := range m {
		if offset >= c.total {
			offset -= c.total
			continue
		}
		l, err := f.leaf(c.position)
		if err != nil {
			return nil, err
		}
		if numbers = l.page(c.position<<leafBits, numbers, offset, size); len(numbers) == size {
			break
		}
		offset = 0
	}
	return numbers, nil
}

// write hands over every record that has changed, with a nil value where it is to
// be deleted.
func (f *family) write(put func(path, []byte)) {
	if !f.changed {
		return
	}
	mids := map[int64]bool{}
	for position := range f.dirty {
		put(f.node(nodeLeaf, position), f.leafs[position].encode())
		mids[position>>(midBits-leafBits)] = true
	}
	for position := range mids {
		put(f.node(nodeMid, position), f.mids[position].encode(nil))
	}
	put(f.node(nodeRoot, 0), f.encode())
}

// encode returns the record of the root.
func (f *family) encode() []byte {
	switch {
	case f.count() == 0:
		return nil
	case f.root != nil:
		return f.root.encode([]byte{formTree})
	}
	return encodeNumbers([]byte{formSmall}, f.small)
}

// encodeNumbers appends numbers in ascending order.
func encodeNumbers(b []byte, numbers []int64) []byte {
	var before int64
	for _, n := range numbers {
		b, before = binary.AppendUvarint(b, uint64(n-before)), n
	}
	return b
}

func decodeNumbers(b []byte) ([]int64, error) {
	var numbers []int64
	var before int64
	for r := bytes.NewReader(b); r.Len() > 0; {
		d, err := binary.ReadUvarint(r)
		if err != nil {
			return nil, errDamaged
		}
		before += int64(d)
		numbers = append(numbers, before)
	}
	return numbers, nil
}
