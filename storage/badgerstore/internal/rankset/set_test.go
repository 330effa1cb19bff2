package rankset

import (
	"errors"
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// records is the key-value store of a set.
type records map[string][]byte

func (r records) get(key []byte) ([]byte, error) { return r[string(key)], nil }

func (r records) put(key []byte, value []byte) {
	if value == nil {
		delete(r, string(key))
		return
	}
	r[string(key)] = value
}

func (r records) open(t rapid.TB) *Set {
	t.Helper()
	f, err := Open([]byte("base"), r.get)
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	return f
}

// numbers draws numbers of resources: many adjacent numbers, and some distant ones.
func numbers() *rapid.Generator[int64] {
	return rapid.OneOf(
		rapid.Int64Range(1, 300), rapid.Int64Range(1000, 1100), rapid.Int64Range(1, 5000),
		rapid.Int64Range(1<<midBits-40, 1<<midBits+40), rapid.Int64Range(1, 1<<40),
		rapid.SampledFrom([]int64{1, math.MaxInt64, math.MaxInt64 - 1, 1 << leafBits}))
}

// TestSet: after any additions, removals and writes, a set has exactly its members, in order, and the right total.
func TestSet(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		stored := records{}
		f := stored.open(t)
		var want []int64
		t.Repeat(map[string]func(*rapid.T){
			"add": func(t *rapid.T) {
				for _, n := range rapid.SliceOfN(numbers(), 1, 60).Draw(t, "numbers") {
					if i, has := slices.BinarySearch(want, n); !has {
						want = slices.Insert(want, i, n)
					}
					if err := f.Put(n, true); err != nil {
						t.Fatalf("Put(%d, true): %v", n, err)
					}
				}
			},
			"remove": func(t *rapid.T) {
				for _, n := range rapid.SliceOfN(numbers(), 1, 60).Draw(t, "numbers") {
					want = without(want, n)
					if err := f.Put(n, false); err != nil {
						t.Fatalf("Put(%d, false): %v", n, err)
					}
				}
			},
			"thin": func(t *rapid.T) {
				for range rapid.IntRange(0, len(want)).Draw(t, "how many") {
					n := want[rapid.IntRange(0, len(want)-1).Draw(t, "which")]
					want = without(want, n)
					if err := f.Put(n, false); err != nil {
						t.Fatalf("Put(%d, false): %v", n, err)
					}
				}
			},
			"reopen": func(t *rapid.T) {
				f.Write(stored.put)
				f = stored.open(t)
			},
			"": func(t *rapid.T) { checkSet(t, f, want) },
		})
		for _, n := range want {
			_ = f.Put(n, false)
		}
		f.Write(stored.put)
		if len(stored) > 0 {
			t.Fatalf("records of an empty set: got %q, want none", stored)
		}
	})
}

func without(numbers []int64, n int64) []int64 {
	if i, has := slices.BinarySearch(numbers, n); has {
		return slices.Delete(numbers, i, i+1)
	}
	return numbers
}

func checkSet(t *rapid.T, f *Set, want []int64) {
	if got := f.Len(); got != len(want) {
		t.Fatalf("Len: got %d, want %d", got, len(want))
	}
	offset, size := rapid.IntRange(0, len(want)+2).Draw(t, "offset"), rapid.IntRange(0, 200).Draw(t, "size")
	got, err := f.Page(offset, size)
	if err != nil {
		t.Fatalf("Page(%d, %d): %v", offset, size, err)
	}
	first := min(offset, len(want))
	if page := want[first:min(first+size, len(want))]; !slices.Equal(got, page) {
		t.Fatalf("Page(%d, %d): got %v, want %v", offset, size, got, page)
	}
}

// TestSetFewLookUps: reading the total, or any page, of a set of a million numbers takes at most five look-ups.
func TestSetFewLookUps(t *testing.T) {
	const million = 1_000_000
	stored := records{}
	f := stored.open(t)
	for n := int64(1); n <= million; n++ {
		if err := f.Put(n, true); err != nil {
			t.Fatalf("Put(%d, true): %v", n, err)
		}
	}
	f.Write(stored.put)
	for _, offset := range []int{0, 1000, 1<<midBits - 5, million / 2, million - 10} {
		lookUps := 0
		f, err := Open([]byte("base"), func(key []byte) ([]byte, error) {
			lookUps++
			return stored.get(key)
		})
		if err != nil || f.Len() != million {
			t.Fatalf("Open: got %d numbers, %v, want %d", f.Len(), err, million)
		}
		page, err := f.Page(offset, 10)
		if err != nil || len(page) != 10 || page[0] != int64(offset)+1 {
			t.Fatalf("Page(%d, 10): got %v, %v", offset, page, err)
		}
		if lookUps > 5 { // the root, a mid and a leaf, and at a border their neighbours
			t.Errorf("Page(%d, 10): got %d look-ups, want 5 at most", offset, lookUps)
		}
	}
}

// TestSetDamaged: a missing, truncated or contradicting record is an error. A failure means that a list is wrong.
func TestSetDamaged(t *testing.T) {
	stored := records{}
	f := stored.open(t)
	for n := int64(1); n <= 3000; n++ {
		_ = f.Put(n, true)
	}
	f.Write(stored.put)
	for name, record := range stored {
		for change, damaged := range map[string][]byte{"missing": nil, "cut off": record[:len(record)-1], "other": {9, 9}} {
			stored[name] = damaged
			f, err := Open([]byte("base"), stored.get)
			if err == nil {
				_, err = f.Page(0, 3000)
			}
			if !errors.Is(err, ErrDamaged) && f.Len() > 0 {
				t.Errorf("%q %s: got error %v, want %v", name, change, err, ErrDamaged)
			}
		}
		stored[name] = record
	}
}
