package badgerstore

import (
	"errors"
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// records is where a family is written to.
type records map[string][]byte

func (r records) get(p path) ([]byte, error) { return r[string(p)], nil }

func (r records) put(p path, value []byte) {
	if value == nil {
		delete(r, string(p))
		return
	}
	r[string(p)] = value
}

func (r records) open(t rapid.TB) *family {
	t.Helper()
	f, err := openFamily(path("base"), r.get)
	if err != nil {
		t.Fatalf("openFamily: %v", err)
	}
	return f
}

// numbers draws numbers of resources: many beside each other, some far away.
func numbers() *rapid.Generator[int64] {
	return rapid.OneOf(
		rapid.Int64Range(1, 300), rapid.Int64Range(1000, 1100), rapid.Int64Range(1, 5000),
		rapid.Int64Range(1<<midBits-40, 1<<midBits+40), rapid.Int64Range(1, 1<<40),
		rapid.SampledFrom([]int64{1, math.MaxInt64, math.MaxInt64 - 1, 1 << leafBits}))
}

// TestFamily: a list has exactly what was put into it, in order, and its total is
// right, whatever was added and removed and however often it was written in between.
func TestFamily(t *testing.T) {
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
					if err := f.add(n); err != nil {
						t.Fatalf("add(%d): %v", n, err)
					}
				}
			},
			"remove": func(t *rapid.T) {
				for _, n := range rapid.SliceOfN(numbers(), 1, 60).Draw(t, "numbers") {
					want = without(want, n)
					if err := f.remove(n); err != nil {
						t.Fatalf("remove(%d): %v", n, err)
					}
				}
			},
			"thin": func(t *rapid.T) {
				for range rapid.IntRange(0, len(want)).Draw(t, "how many") {
					n := want[rapid.IntRange(0, len(want)-1).Draw(t, "which")]
					want = without(want, n)
					if err := f.remove(n); err != nil {
						t.Fatalf("remove(%d): %v", n, err)
					}
				}
			},
			"reopen": func(t *rapid.T) {
				f.write(stored.put)
				f = stored.open(t)
			},
			"": func(t *rapid.T) { checkFamily(t, f, want) },
		})
		for _, n := range want {
			_ = f.remove(n)
		}
		f.write(stored.put)
		if len(stored) > 0 {
			t.Fatalf("records of an empty family: got %q, want none", stored)
		}
	})
}

func without(numbers []int64, n int64) []int64 {
	if i, has := slices.BinarySearch(numbers, n); has {
		return slices.Delete(numbers, i, i+1)
	}
	return numbers
}

func checkFamily(t *rapid.T, f *family, want []int64) {
	if got := f.count(); got != len(want) {
		t.Fatalf("count: got %d, want %d", got, len(want))
	}
	offset, size := rapid.IntRange(0, len(want)+2).Draw(t, "offset"), rapid.IntRange(0, 200).Draw(t, "size")
	got, err := f.page(offset, size)
	if err != nil {
		t.Fatalf("page(%d, %d): %v", offset, size, err)
	}
	first := min(offset, len(want))
	if page := want[first:min(first+size, len(want))]; !slices.Equal(got, page) {
		t.Fatalf("page(%d, %d): got %v, want %v", offset, size, got, page)
	}
}

// TestFamilyFewLookUps: a page out of a million numbers, and their total, take a
// handful of look-ups wherever it is.
func TestFamilyFewLookUps(t *testing.T) {
	const million = 1_000_000
	stored := records{}
	f := stored.open(t)
	for n := int64(1); n <= million; n++ {
		if err := f.add(n); err != nil {
			t.Fatalf("add(%d): %v", n, err)
		}
	}
	f.write(stored.put)
	for _, offset := range []int{0, 1000, million / 2, million - 10} {
		lookUps := 0
		f, err := openFamily(path("base"), func(p path) ([]byte, error) {
			lookUps++
			return stored.get(p)
		})
		if err != nil || f.count() != million {
			t.Fatalf("openFamily: got %d numbers, %v, want %d", f.count(), err, million)
		}
		page, err := f.page(offset, 10)
		if err != nil || len(page) != 10 || page[0] != int64(offset)+1 {
			t.Fatalf("page(%d, 10): got %v, %v", offset, page, err)
		}
		if lookUps > 5 { // the root, a mid and a leaf, and at a border their neighbours
			t.Errorf("page(%d, 10): got %d look-ups, want 5 at most", offset, lookUps)
		}
	}
}

// TestFamilyDamaged: a record that is missing, short or does not fit to the others is
// an error and not a wrong list.
func TestFamilyDamaged(t *testing.T) {
	stored := records{}
	f := stored.open(t)
	for n := int64(1); n <= 3000; n++ {
		_ = f.add(n)
	}
	f.write(stored.put)
	for name, record := range stored {
		for what, damaged := range map[string][]byte{"missing": nil, "cut off": record[:len(record)-1], "other": {9, 9}} {
			stored[name] = damaged
			f, err := openFamily(path("base"), stored.get)
			if err == nil {
				_, err = f.page(0, 3000)
			}
			if !errors.Is(err, errDamaged) && f.count() > 0 {
				t.Errorf("%q %s: got error %v, want %v", name, what, err, errDamaged)
			}
		}
		stored[name] = record
	}
}
