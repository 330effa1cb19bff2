package core

import (
	"testing"
	"time"
)

// Promise 3: a link ends with every change of what it leads to, also when that was
// pushed out of memory before, and a look-up that began before the change cannot tie it
// again.
func TestLinkEndsWithAChange(t *testing.T) {
	s := &source{}
	c := newTestCache(s, time.Now)
	c.resize(1)
	var l cacheRef[int, int64]
	through := func() int64 {
		t.Helper()
		var hits uint64
		v, err := l.getOrFind(t.Context(), c, 1, &hits)
		if err != nil {
			t.Fatal(err)
		}
		return *v
	}
	change := func() int64 {
		defer c.forget(1)
		return s.value.Add(1)
	}
	for round := range 3 {
		want := change()
		if got := through(); got != want {
			t.Fatalf("round %d: %d, want %d", round, got, want)
		}
		if l.get(c) == nil {
			t.Fatalf("round %d: the link is not tied", round)
		}
	}

	if _, err := c.get(t.Context(), 2); err != nil || c.size.Len() != 1 { // 1 has to make room
		t.Fatal(err, c.size.Len())
	}
	if v := l.get(c); v == nil || *v != s.value.Load() {
		t.Errorf("the link to what made room: %v, want what it was", v)
	}
	if want := change(); through() != want {
		t.Errorf("after it made room and was changed the link leads to what was before")
	}

	var hits uint64
	early, err := c.find(t.Context(), 1, &hits)
	if err != nil {
		t.Fatal(err)
	}
	want := change()
	l.set(c, early)
	if v := l.get(c); v != nil {
		t.Errorf("tied to %d from before the change", *v)
	}
	if got := through(); got != want {
		t.Errorf("%d, want %d", got, want)
	}
}

// What is held of a key has few pieces, and is what it was.
func TestHoldKey(t *testing.T) {
	k := &Key{AccountID: "acct_a", ID: "key_b", Name: "", PlanID: "plan_c", Status: KeyActive, Hint: "lk_user_…wxyz"}
	h, err := newCachedKey(k, nil)
	if err != nil || h.AccountID != k.AccountID || h.ID != k.ID || h.Name != "" || h.PlanID != k.PlanID ||
		h.Status != k.Status || h.Hint != k.Hint {
		t.Errorf("held %+v, %v, want %+v", h, err, k)
	}
	if _, err := newCachedKey(nil, ErrKeyNotFound); err != ErrKeyNotFound {
		t.Errorf("err = %v, want %v", err, ErrKeyNotFound)
	}
	if n := testing.AllocsPerRun(100, func() { shareMemory(&h.ID, &h.Hint) }); n > 2 {
		t.Errorf("two texts are put into %v pieces", n)
	}
}
