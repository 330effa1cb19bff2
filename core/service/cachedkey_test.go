package service

import (
	"testing"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
)

// Promise 3: a reference becomes invalid with every change of its value, even after the value was
// evicted. A look-up that began before the change cannot set it again.
func TestRefEndsWithAChange(t *testing.T) {
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
		if v, _ := l.get(c); v == nil {
			t.Fatalf("round %d: the reference is not set", round)
		}
	}

	if _, err := c.get(t.Context(), 2); err != nil || c.Len() != 1 { // evicts 1
		t.Fatal(err, c.Len())
	}
	if v, _ := l.get(c); v == nil || *v != s.value.Load() {
		t.Errorf("the reference to an evicted value: %v, want the value", v)
	}
	if want := change(); through() != want {
		t.Errorf("the reference to an evicted and changed value returns the old value")
	}

	var hits uint64
	early, err := c.find(t.Context(), 1, &hits)
	if err != nil {
		t.Fatal(err)
	}
	want := change()
	l.set(c, 1, early, false)
	if v, _ := l.get(c); v != nil {
		t.Errorf("set to %d from before the change", *v)
	}
	if got := through(); got != want {
		t.Errorf("%d, want %d", got, want)
	}
}

// A reference keeps its flag as long as it is valid.
func TestRefFlag(t *testing.T) {
	c := newTestCache(&source{}, time.Now)
	var hits uint64
	e, err := c.find(t.Context(), 1, &hits)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []bool{true, false, true} {
		var r cacheRef[int, int64]
		r.set(c, 1, e, want)
		if v, got := r.get(c); v == nil || got != want {
			t.Errorf("got %v, flag %v, want a value, flag %v", v, got, want)
		}
	}
}

// A cached key keeps the members of the key, in few allocations.
func TestCachedKey(t *testing.T) {
	k := &core.Key{AccountID: "acct_a", ID: "key_b", Name: "", PlanID: "plan_c", Status: core.KeyActive, Hint: "lk_user_…wxyz"}
	h, err := newCachedKey(k, nil)
	if err != nil || h.AccountID != k.AccountID || h.ID != k.ID || h.Name != "" || h.PlanID != k.PlanID ||
		h.Status != k.Status || h.Hint != k.Hint {
		t.Errorf("cached %+v, %v, want %+v", h, err, k)
	}
	if _, err := newCachedKey(nil, core.ErrKeyNotFound); err != core.ErrKeyNotFound {
		t.Errorf("err = %v, want %v", err, core.ErrKeyNotFound)
	}
	if n := testing.AllocsPerRun(100, func() { shareMemory(&h.ID, &h.Hint) }); n > 2 {
		t.Errorf("two strings take %v allocations", n)
	}
}
