package rankset

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
)

const (
	nodeRoot = 0
	nodeMid  = 1
	nodeLeaf = 2

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
	small []int64 // the members when root is nil
	root  branch
	mids  map[int64]branch
	leafs map[int64]*leaf

	changed bool
	dirty   map[int64]bool // positions of changed leafs; their mids have changed too
}

// Open returns the set whose keys begin with base. A set without records is empty. read returns the
// record of a key, nil when there is none. Open and all methods return errors of read, and ErrDamaged.
func Open(base []byte, read func(key []byte) ([]byte, error)) (*Set, error) {
	s := &Set{base: base, read: read}
	raw, err := read(s.key(nodeRoot, 0))
	if err != nil || len(raw) == 0 {
		return s, err
	}
	switch raw[0] {
	case formSmall:
		s.small, err = decodeNumbers(raw[1:])
	case formTree:
		s.grow()
		s.root, err = decodeBranch(raw[1:])
	default:
		err = ErrDamaged
	}
	return s, s.named(err)
}

// IsRoot reports whether a key is the key of a root. suffix is the key without the base of the set.
func IsRoot(suffix []byte) bool { return len(suffix) == 1 && suffix[0] == nodeRoot }

// key returns the key of a node. The root has no position.
func (s *Set) key(level byte, position int64) []byte {
	key := append(slices.Clone(s.base), level)
	if level == nodeRoot {
		return key
	}
	return binary.BigEndian.AppendUint64(key, uint64(position))
}

// named adds the base of the set to an error. A nil error stays nil.
func (s *Set) named(err error) error {
	if err != nil {
		return fmt.Errorf("index %q: %w", s.base, err)
	}
	return nil
}

// grow turns the set into an empty tree.
func (s *Set) grow() {
	s.root, s.small = branch{}, nil
	s.mids, s.leafs, s.dirty = map[int64]branch{}, map[int64]*leaf{}, map[int64]bool{}
}

// Len returns the number of members.
func (s *Set) Len() int {
	if s.root == nil {
		return len(s.small)
	}
	return s.root.total()
}

// Contains reports whether n is a member.
func (s *Set) Contains(n int64) (bool, error) {
	if s.root == nil {
		_, has := slices.BinarySearch(s.small, n)
		return has, nil
	}
	l, err := s.leaf(n >> leafBits)
	return err == nil && l.has(n), err
}

// Add makes n a member of the set, if it is not a member yet.
func (s *Set) Add(n int64) error {
	if s.root != nil {
		return s.put(n, true)
	}
	i, has := slices.BinarySearch(s.small, n)
	if has {
		return nil
	}
	s.changed = true
	s.small = slices.Insert(s.small, i, n)
	if len(s.small) <= smallMax {
		return nil
	}
	numbers := s.small
	s.grow()
	for _, n := range numbers {
		if err := s.put(n, true); err != nil {
			return err
		}
	}
	return nil
}

// Remove removes n from the set, if it is a member.
func (s *Set) Remove(n int64) error {
	if s.root != nil {
		return s.put(n, false)
	}
	if i, has := slices.BinarySearch(s.small, n); has {
		s.changed = true
		s.small = slices.Delete(s.small, i, i+1)
	}
	return nil
}

// put adds n to the tree, or removes n when member is false.
func (s *Set) put(n int64, member bool) error {
	l, err := s.leaf(n >> leafBits)
	if err != nil {
		return err
	}
	m, err := s.mid(n >> midBits)
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
	s.mids[n>>midBits] = m.adjust(n>>leafBits, by)
	s.root = s.root.adjust(n>>midBits, by)
	s.dirty[n>>leafBits], s.changed = true, true
	return nil
}

// mid returns the mid at a position, an empty mid when none is stored.
func (s *Set) mid(position int64) (branch, error) {
	if m, ok := s.mids[position]; ok || !s.root.has(position) {
		return m, nil
	}
	raw, err := s.read(s.key(nodeMid, position))
	if err != nil {
		return nil, err
	}
	m, err := decodeBranch(raw)
	if err != nil || m.total() != s.root.of(position) {
		return nil, s.named(ErrDamaged)
	}
	s.mids[position] = m
	return m, nil
}

// leaf returns the leaf at a position, an empty leaf when none is stored.
func (s *Set) leaf(position int64) (*leaf, error) {
	if l, ok := s.leafs[position]; ok {
		return l, nil
	}
	m, err := s.mid(position >> (midBits - leafBits))
	if err != nil {
		return nil, err
	}
	l := &leaf{}
	if m.has(position) {
		raw, err := s.read(s.key(nodeLeaf, position))
		if err != nil {
			return nil, err
		}
		if err := l.decode(raw); err != nil || l.total() != m.of(position) {
			return nil, s.named(ErrDamaged)
		}
	}
	s.leafs[position] = l
	return l, nil
}

// Page returns at most size members in ascending order, after skipping offset members.
func (s *Set) Page(offset, size int) ([]int64, error) {
	if offset >= s.Len() {
		return nil, nil
	}
	if s.root == nil {
		return slices.Clone(s.small[offset:][:min(size, len(s.small)-offset)]), nil
	}
	size = min(size, s.Len()-offset)
	return s.page(s.root, true, make([]int64, 0, size), offset, size)
}

// page appends members below a branch, which is the root or a mid, to numbers, after skipping offset members, until
// numbers has size members.
func (s *Set) page(b branch, isRoot bool, numbers []int64, offset, size int) ([]int64, error) {
	for _, c := range b {
		if offset >= c.total {
			offset -= c.total
			continue
		}
		if isRoot {
			m, err := s.mid(c.position)
			if err == nil {
				numbers, err = s.page(m, false, numbers, offset, size)
			}
			if err != nil {
				return nil, err
			}
		} else {
			l, err := s.leaf(c.position)
			if err != nil {
				return nil, err
			}
			numbers = l.page(c.position<<leafBits, numbers, offset, size)
		}
		if len(numbers) == size {
			break
		}
		offset = 0
	}
	return numbers, nil
}

// Write calls put with each changed record. A nil record means that the key is to be deleted.
func (s *Set) Write(put func(key, record []byte)) {
	if !s.changed {
		return
	}
	mids := map[int64]bool{}
	for position := range s.dirty {
		put(s.key(nodeLeaf, position), s.leafs[position].encode())
		mids[position>>(midBits-leafBits)] = true
	}
	for position := range mids {
		put(s.key(nodeMid, position), s.mids[position].encode(nil))
	}
	put(s.key(nodeRoot, 0), s.encode())
}

// encode returns the record of the root.
func (s *Set) encode() []byte {
	switch {
	case s.Len() == 0:
		return nil
	case s.root != nil:
		return s.root.encode([]byte{formTree})
	}
	return encodeNumbers([]byte{formSmall}, s.small)
}

// encodeNumbers appends ascending numbers to b, each as its difference from the previous number.
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
			return nil, ErrDamaged
		}
		before += int64(d)
		numbers = append(numbers, before)
	}
	return numbers, nil
}
