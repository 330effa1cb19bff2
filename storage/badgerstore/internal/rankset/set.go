// Package rankset keeps ordered sets of numbers in a key-value store. The size of a set, and a page of its
// members at any offset, take at most five look-ups, however large the set is.
//
// A set has one of two forms. A small set, of up to 64 numbers, is one record. A large set is a tree of three levels:
//
//	root   the number of members below each mid
//	 │
//	 ├─ mid    covers 131,072 consecutive numbers: the number of members in each leaf
//	 │   │
//	 │   ├─ leaf    covers 1,024 consecutive numbers: a bit for each
//	 │   └─ …
//	 └─ …
//
// Adding or removing a number writes three records of at most some hundred bytes. Records are read by key,
// never by iterator: the root is rewritten with each change, and an iterator of Badger steps over all
// versions that are still in memory.
//
//	record  key after the base of the set    value
//	root    0                                0 and the members, or 1 and the children
//	mid     1, number >> 17                  the children
//	leaf    2, number >> 10                  a bit for each number, the lowest bit first, without zero bytes at the end
//
// Members and children are in ascending order, each as its uvarint difference from the previous one. The total of a child, a
// uvarint, follows its position. Positions in keys have 8 bytes, big endian.
package rankset

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"slices"
)

const (
	root = 0 // the levels of a tree
	mid  = 1
	leaf = 2

	formSmall = 0
	formTree  = 1

	smallMax = 64 // members of a small set

	leafBits = 10 // a leaf covers 1<<leafBits numbers
	midBits  = 17 // a mid covers 1<<midBits numbers
)

// ErrDamaged means that the records of a set contradict each other, or that one is missing.
var ErrDamaged = errors.New("an index is damaged")

// Set is an ordered set of positive numbers. It reads records when it needs them, and has changes in memory
// until Write. Not safe for concurrent use.
type Set struct {
	base  []byte
	read  func(key []byte) ([]byte, error)
	small bool // the record of the root has the members; all nodes are in memory
	root  node
}

// node is a node of a tree. A node without members has no record.
type node struct {
	position int64 // the number of the first member that the node can have, without the bits within the node
	total    int   // members
	*content       // nil until the node is read
}

type content struct {
	changed  bool
	children []node                  // of a root or a mid, by ascending position
	members  [1 << leafBits / 8]byte // of a leaf: a bit for each number
}

// Open returns the set whose keys begin with base. A set without records is empty. read returns the
// record of a key, nil when there is none. Open and all methods return errors of read, and ErrDamaged.
func Open(base []byte, read func(key []byte) ([]byte, error)) (*Set, error) {
	s := &Set{base: base, read: read, small: true, root: node{content: new(content)}}
	raw, err := read(s.key(root, 0))
	if err != nil || len(raw) == 0 {
		return s, err
	}
	r := &numberReader{rest: raw[1:]}
	switch s.small = raw[0] == formSmall; {
	case s.small:
		for n := int64(0); len(r.rest) > 0; {
			n += r.next()
			_ = s.Put(n, true)
		}
		s.root.changed = false
	case raw[0] == formTree:
		s.root.total = s.root.decode(r)
	default:
		r.failed = true
	}
	if r.failed {
		return s, s.damaged()
	}
	return s, nil
}

// numberReader reads the numbers of a record.
type numberReader struct {
	rest   []byte
	failed bool
}

// next returns the next number. Without one, the reader has failed, and ends.
func (r *numberReader) next() int64 {
	n, size := binary.Uvarint(r.rest)
	if size <= 0 {
		r.rest, r.failed = nil, true
		return 0
	}
	r.rest = r.rest[size:]
	return int64(n)
}

// key returns the key of a node. The root has no position.
func (s *Set) key(level byte, position int64) []byte {
	key := append(slices.Clone(s.base), level)
	if level == root {
		return key
	}
	return binary.BigEndian.AppendUint64(key, uint64(position))
}

func (s *Set) damaged() error { return fmt.Errorf("index %q: %w", s.base, ErrDamaged) }

// Len returns the number of members.
func (s *Set) Len() int { return s.root.total }

// Contains reports whether n is a member.
func (s *Set) Contains(n int64) (bool, error) {
	path, err := s.find(n)
	return err == nil && path[leaf].has(n), err
}

// Put makes n a member of the set, or removes n when member is false.
func (s *Set) Put(n int64, member bool) error {
	path, err := s.find(n)
	if err != nil || path[leaf].has(n) == member {
		return err
	}
	path[leaf].members[byteOf(n)] ^= 1 << (n & 7)
	by := 1
	if !member {
		by = -1
	}
	for _, x := range path {
		x.total += by
		x.changed = true
	}
	return nil
}

// has reports whether n, which the leaf covers, is a member.
func (c *content) has(n int64) bool { return c.members[byteOf(n)]&(1<<(n&7)) != 0 }

// byteOf returns the byte of a leaf that has the bit of n.
func byteOf(n int64) int64 { return n >> 3 & (1<<leafBits/8 - 1) }

// find returns the root, the mid and the leaf that cover n, with their contents.
func (s *Set) find(n int64) (path [3]*node, err error) {
	path[root] = &s.root
	if path[mid], err = s.child(path[root], mid, n>>midBits); err == nil {
		path[leaf], err = s.child(path[mid], leaf, n>>leafBits)
	}
	return path, err
}

// child returns the child of x at a position, with its content. A missing child is added without members.
func (s *Set) child(x *node, level byte, position int64) (*node, error) {
	i, found := slices.BinarySearchFunc(x.children, position, func(c node, p int64) int {
		return cmp.Compare(c.position, p)
	})
	if !found {
		x.children = slices.Insert(x.children, i, node{position: position, content: new(content)})
	}
	return &x.children[i], s.load(&x.children[i], level)
}

// load reads the content of a node, unless it is in memory.
func (s *Set) load(x *node, level byte) error {
	if x.content != nil {
		return nil
	}
	raw, err := s.read(s.key(level, x.position))
	if err != nil {
		return err
	}
	c, r, total := new(content), &numberReader{rest: raw}, 0
	if level == mid {
		total = c.decode(r)
	} else {
		for _, part := range c.members[:copy(c.members[:], raw)] {
			total += bits.OnesCount8(part)
		}
	}
	if r.failed || total != x.total || len(raw) > len(c.members) && level == leaf {
		return s.damaged()
	}
	x.content = c
	return nil
}

// decode reads the children of a node, and returns how many members they have.
func (c *content) decode(r *numberReader) (total int) {
	for position := int64(0); len(r.rest) > 0; {
		position += r.next()
		n := int(r.next())
		c.children = append(c.children, node{position: position, total: n})
		total += n
	}
	return total
}

// Page returns at most size members in ascending order, after skipping offset members.
func (s *Set) Page(offset, size int) (numbers []int64, err error) {
	numbers, _, err = s.page(&s.root, root, nil, offset, size)
	return numbers, err
}

// page appends members below a node to numbers, after skipping offset members, until numbers has size members. It returns how many
// members are left to skip.
func (s *Set) page(x *node, level byte, numbers []int64, offset, size int) ([]int64, int, error) {
	if offset >= x.total {
		return numbers, offset - x.total, nil
	}
	err := s.load(x, level)
	for i := 0; err == nil && i < len(x.children) && len(numbers) < size; i++ {
		numbers, offset, err = s.page(&x.children[i], level+1, numbers, offset, size)
	}
	if err != nil {
		return nil, 0, err
	}
	for i := int64(0); level == leaf && i < 1<<leafBits && len(numbers) < size; i++ {
		if n := x.position<<leafBits | i; x.has(n) {
			if offset--; offset < 0 {
				numbers = append(numbers, n)
			}
		}
	}
	return numbers, max(0, offset), nil
}

// Write calls put with each changed record. A nil record means that the key is to be deleted.
func (s *Set) Write(put func(key, record []byte)) {
	if !s.root.changed {
		return
	}
	if s.small = s.small && s.root.total <= smallMax; !s.small {
		s.write(&s.root, root, put)
		return
	}
	record, before := []byte{formSmall}, int64(0)
	numbers, _ := s.Page(0, smallMax)
	for _, n := range numbers {
		record, before = binary.AppendUvarint(record, uint64(n-before)), n
	}
	if len(numbers) == 0 {
		record = nil
	}
	put(s.key(root, 0), record)
}

// write calls put with each changed record of a tree.
func (s *Set) write(x *node, level byte, put func(key, record []byte)) {
	var record []byte
	if level == leaf {
		record = append(record, bytes.TrimRight(x.members[:], "\x00")...)
	}
	before := int64(0)
	for i := range x.children {
		c := &x.children[i]
		if c.content != nil && c.changed {
			s.write(c, level+1, put)
		}
		if c.total > 0 {
			record = binary.AppendUvarint(binary.AppendUvarint(record, uint64(c.position-before)), uint64(c.total))
			before = c.position
		}
	}
	if level == root && len(record) > 0 {
		record = slices.Insert(record, 0, formTree)
	}
	put(s.key(level, x.position), record)
}
