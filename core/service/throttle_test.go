package service_test

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/service"
	"github.com/limitkeeper/limitkeeper/storage/memstore"
)

// In any window at most limit requests are admitted, and none is refused while fewer than limit
// were.
func TestThrottleIsExactInEverySpan(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limit := rapid.IntRange(1, 8).Draw(t, "limit")
		now := at("2026-03-05T10:00:00Z")
		th := service.NewThrottle(limit, time.Minute, now)
		var admitted []time.Time
		for range rapid.IntRange(1, 100).Draw(t, "requests") {
			now = now.Add(time.Duration(rapid.Int64Range(0, 30_000).Draw(t, "ms")) * time.Millisecond)
			inSpan := 0
			for _, a := range admitted {
				if now.Sub(a) < time.Minute {
					inSpan++
				}
			}
			wait, ok := th.Admit("k", now)
			if ok != (inSpan < limit) {
				t.Fatalf("Admit = %v with %d of %d in the last minute", ok, inSpan, limit)
			}
			if ok {
				admitted = append(admitted, now)
				continue
			}
			if _, early := th.Admit("k", now.Add(wait-1)); early {
				t.Fatalf("admitted before the wait of %v was over", wait)
			}
			if wait <= 0 || wait > time.Minute {
				t.Fatalf("wait = %v", wait)
			}
		}
	})
}

func TestThrottleKeysAreApart(t *testing.T) {
	now := at("2026-03-05T10:00:00Z")
	th := service.NewThrottle(1, time.Minute, now)
	for _, key := range []string{"a", "b"} {
		if _, ok := th.Admit(key, now); !ok {
			t.Errorf("the first request of %s is refused", key)
		}
		if wait, ok := th.Admit(key, now.Add(20*time.Second)); ok || wait != 40*time.Second {
			t.Errorf("the second request of %s: wait %v, admitted %v, want 40s, false", key, wait, ok)
		}
	}
}

func TestThrottleSetLimit(t *testing.T) {
	now := at("2026-03-05T10:00:00Z")
	th := service.NewThrottle(1, time.Minute, now)
	th.Admit("a", now)
	th.SetLimit(1, time.Minute) // a reload that changes nothing forgets nothing
	if _, ok := th.Admit("a", now); ok {
		t.Error("setting the same limit forgot what was admitted")
	}
	th.SetLimit(0, time.Minute)
	for range 5 {
		if _, ok := th.Admit("a", now); !ok {
			t.Fatal("refused although the throttle is off")
		}
	}
}

// Idle keys are dropped from memory; keys in use are kept.
func TestThrottleSweepsIdleKeys(t *testing.T) {
	now := at("2026-03-05T10:00:00Z")
	th := service.NewThrottle(1, time.Minute, now)
	for i := range 5000 {
		th.Admit(time.Duration(i).String(), now.Add(time.Duration(i)*time.Second))
		th.CountRefusal(time.Duration(i).String(), now.Add(time.Duration(i)*time.Second))
	}
	if n := th.Len(); n > 2048 {
		t.Errorf("%d logs in memory, want at most 2048", n)
	}
	last := now.Add(4999 * time.Second)
	if _, ok := th.Admit(time.Duration(4999).String(), last); ok {
		t.Error("a key in use was forgotten")
	}
}

// Many owner's keys do not multiply the requests of an account without a bound.
func TestThrottleOfAccount(t *testing.T) {
	now := at("2026-03-05T10:00:00Z")
	svc := service.New(memstore.New(), service.Config{Clock: func() time.Time { return now }})
	tunables := service.DefaultTunables()
	tunables.ThrottleLimit = 2
	svc.Tune(tunables)
	admitted := 0
	for i := range 15 {
		for range 3 {
			if _, ok := svc.Admit(&core.OwnerKey{ID: "okey_" + string(rune('a'+i)), AccountID: "acct_a"}); ok {
				admitted++
			}
		}
	}
	if admitted != 20 {
		t.Errorf("%d requests of 15 keys were admitted, want 10 times the bound of a key: 20", admitted)
	}
	if _, ok := svc.Admit(&core.OwnerKey{ID: "okey_other", AccountID: "acct_b"}); !ok {
		t.Error("a request of another account was refused")
	}
}
