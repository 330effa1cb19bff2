package badgerstore

import (
	"bytes"
	"slices"
	"sort"

	"github.com/limitkeeper/limitkeeper/storage/resource"
)

// Page implements [resource.Reader].
func (r reader) Page(kind resource.Kind, set string, offset, n int) (records [][]byte, size int, err error) {
	numbers, size, err := r.members(setPath(r.account, set), offset, n)
	if err == nil {
		records, err = r.recordsAt(kind, numbers)
	}
	return records, size, fault(err)
}

// members returns the size of the set with a base, and at most n of its numbers, in ascending order after the first offset numbers.
func (r view) members(base path, offset, n int) (numbers []int64, size int, err error) {
	f, err := r.index(base)
	if err == nil {
		numbers, err = f.Page(offset, n)
	}
	return numbers, f.Len(), err
}

// After implements [resource.Reader].
func (r reader) After(kind resource.Kind, set string, number int64, n int) ([][]byte, int, error) {
	f, err := r.index(setPath(r.account, set))
	if err != nil {
		return nil, 0, fault(err)
	}
	offset := sort.Search(f.Len(), func(i int) bool { // about 16 reads of cached nodes for 50,000 members
		at, e := f.Page(i, 1)
		err = firstOf(err, e)
		return len(at) == 0 || at[0] > number
	})
	if err != nil {
		return nil, 0, fault(err)
	}
	return r.Page(kind, set, offset, n)
}

// A read of one record takes as long as 10 steps of an iterator. The start of an iterator takes as long as 4 reads. An iterator is therefore faster for at
// least minDense records whose numbers span less than maxSpread times their count.
const (
	minDense  = 8
	maxSpread = 4
)

// recordsAt returns the records with the numbers, which are in ascending order. The numbers come from an index, so a missing record is damage.
func (r reader) recordsAt(kind resource.Kind, numbers []int64) (records [][]byte, err error) {
	for some := range slices.Chunk(numbers, iteratorRecords) {
		first, last := some[0], some[len(some)-1]
		if len(some) < minDense || last-first >= int64(maxSpread*len(some)) {
			more, err := readAll(some, func(n int64) ([]byte, error) { return r.existing(recordPath(kind, r.account, n)) })
			if err != nil {
				return nil, err
			}
			records = append(records, more...)
			continue
		}
		err := r.eachFrom(at(byte(kind)).text(r.account), recordPath(kind, r.account, first), func(p path, value []byte) (bool, error) {
			if bytes.Equal(p, recordPath(kind, r.account, some[0])) {
				records, some = append(records, slices.Clone(value)), some[1:]
			}
			return len(some) > 0, nil
		})
		if err == nil && len(some) > 0 {
			err = absent(recordPath(kind, r.account, some[0]))
		}
		if err != nil {
			return nil, err
		}
	}
	return records, nil
}

// Members implements [resource.Reader]. The sets have only numbers, so the ids of the members are "".
func (r reader) Members(set string, offset, n int) ([]resource.Member, error) {
	numbers, _, err := r.members(setPath(r.account, set), offset, n)
	members := make([]resource.Member, len(numbers))
	for i, number := range numbers {
		members[i].Number = number
	}
	return members, fault(err)
}

// Sizes implements [resource.Reader].
func (r reader) Sizes(sets ...string) ([]int, error) {
	return readAll(sets, func(set string) (int, error) {
		f, err := r.index(setPath(r.account, set))
		return f.Len(), err
	})
}
