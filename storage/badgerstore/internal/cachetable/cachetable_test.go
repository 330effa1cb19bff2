package cachetable

import (
	"math"
	"testing"

	"pgregory.net/rapid"
)

// crowd is a hash that puts many keys into few bins, across the end of the table.
func crowd(k int) uint32 { return uint32(k%5*3) | 1<<31 }

// evictOther evicts an entry other than keep, and reports whether there was one to evict.
func evictOther(t *Table[int, int], keep *Entry[int, int]) bool {
	return t.Evict(math.MaxInt, func(e *Entry[int, int]) bool { return e != keep }) != nil
}

// For any sequence of puts, removals and evictions, and any collisions, the table finds exactly the
// entries in it.
func TestTableIsAMap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var table Table[int, int]
		want := map[int]*Entry[int, int]{}
		key := rapid.IntRange(0, 60)
		t.Repeat(map[string]func(*rapid.T){
			"put": func(t *rapid.T) {
				k := key.Draw(t, "key")
				if want[k] == nil {
					want[k] = &Entry[int, int]{hash: crowd(k), Key: k, Value: k}
					table.Put(want[k])
				}
			},
			"remove": func(t *rapid.T) {
				k := key.Draw(t, "key")
				s := want[k]
				if got := table.Remove(crowd(k), k); got != (s != nil) {
					t.Fatalf("remove(%d) = %v, want %v", k, got, !got)
				}
				delete(want, k)
			},
			"use": func(t *rapid.T) {
				if s := want[key.Draw(t, "key")]; s != nil {
					s.MarkUsed()
				}
			},
			"evict": func(t *rapid.T) {
				keep := want[key.Draw(t, "key")]
				before, others := len(want), len(want)
				if keep != nil {
					others--
				}
				if got := evictOther(&table, keep); got != (others > 0) {
					t.Fatalf("evict with %d others = %v", others, got)
				}
				for k := range want {
					if table.Find(crowd(k), k) == nil {
						delete(want, k)
					}
				}
				if got := len(want); got != before-min(others, 1) {
					t.Fatalf("%d of %d are left", got, before)
				}
				if keep != nil && want[keep.Key] == nil {
					t.Fatal("the entry to keep was evicted")
				}
			},
			"": func(t *rapid.T) {
				if table.Len() != len(want) {
					t.Fatalf("%d entries, want %d", table.Len(), len(want))
				}
				for k := range 61 {
					if got := table.Find(crowd(k), k); got != want[k] {
						t.Fatalf("find(%d) = %v, want %v", k, got, want[k])
					}
				}
				if bins := len(table.loadBins()); bins > max(minBins, 16*(len(want)+1)) {
					t.Fatalf("%d bins for %d entries", bins, len(want))
				}
			},
		})
	})
}

// An entry in use is not evicted while an unused one exists.
func TestTableEvictsTheUnused(t *testing.T) {
	var table Table[int, int]
	all := make([]*Entry[int, int], 100)
	for k := range all {
		all[k] = &Entry[int, int]{hash: uint32(k)*7 | 1<<31, Key: k}
		table.Put(all[k])
	}
	for range 90 {
		for _, s := range all[:10] {
			s.MarkUsed()
		}
		evictOther(&table, nil)
	}
	for _, s := range all[:10] {
		if table.Find(s.hash, s.Key) != s {
			t.Errorf("%d was in use and was evicted", s.Key)
		}
	}
	for range 10 { // now every entry is in use
		for _, s := range all[:10] {
			s.MarkUsed()
		}
		if !evictOther(&table, nil) {
			t.Error("nothing is evicted when every entry is in use")
		}
	}
	if table.Len() != 0 {
		t.Errorf("%d entries are left, want none", table.n)
	}
}
