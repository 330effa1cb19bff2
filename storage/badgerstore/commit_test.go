package badgerstore

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
)

// blocked lets commits of a store wait until release is called, and tells when the
// first one does.
func blocked(s *Store) (waits <-chan struct{}, release func()) {
	first, gate := make(chan struct{}), make(chan struct{})
	var once sync.Once
	s.commits(func() error {
		once.Do(func() { close(first) })
		<-gate
		return nil
	})
	return first, sync.OnceFunc(func() { close(gate) })
}

// TestRequestsShareCommits: requests that come while a commit is under way become
// durable together in the next one.
func TestRequestsShareCommits(t *testing.T) {
	const callers = 64
	s := openIn(t, t.TempDir(), Options{})
	known(t, s, append(numbered("key_", callers), "key_first")...)
	waits, release := blocked(s)
	defer release()
	var commits atomic.Int64
	var group sync.WaitGroup
	group.Go(func() { consume(t, s, request("key_first", 1, 1, noon)) })
	await(t, waits)
	for i := range callers {
		group.Go(func() { consume(t, s, request(fmt.Sprintf("key_%d", i), 1, 1, noon)) })
	}
	waitUntil(t, "all requests wait", func() bool {
		s.queue.mu.Lock()
		defer s.queue.mu.Unlock()
		return len(s.queue.waiting) == 1 && len(s.queue.waiting[0].entries) == 2*callers
	})
	done := make(chan struct{})
	go func() { // the hook is replaced as soon as the first commit is through
		s.commits(func() error { commits.Add(1); return nil })
		close(done)
	}()
	release()
	group.Wait()
	await(t, done)
	if got := commits.Load(); got > 1 {
		t.Errorf("commits of %d requests that waited: got %d, want 1", callers, got)
	}
	wantUsed(t, s, ofKey("key_63"), 1)
}

// await waits until c is closed.
func await(t *testing.T, c <-chan struct{}) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(patience):
		t.Fatalf("waited %v for what does not happen", patience)
	}
}

// waitUntil waits until what is true.
func waitUntil(t *testing.T, what string, isTrue func() bool) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(patience); !isTrue(); <-tick.C {
		if time.Now().After(deadline) {
			t.Fatalf("%s: still not so after %v", what, patience)
		}
	}
}

// TestDeniedDoNotWait: a denied request is answered while a commit is under way,
// however long that takes. How many are remembered meanwhile is bounded, and what is
// left out is told.
func TestDeniedDoNotWait(t *testing.T) {
	s := openIn(t, t.TempDir(), Options{})
	known(t, s, "key")
	waits, release := blocked(s)
	defer release()
	var group sync.WaitGroup
	group.Go(func() { consume(t, s, request("key", 1, 1, noon)) })
	await(t, waits)
	const seconds = 1000 // ten denials are recorded in each
	for i := range seconds * core.DeniedPerSecond {
		if consume(t, s, request("key", 1, 1, noon.Add(time.Duration(i/core.DeniedPerSecond)*time.Second))) {
			t.Fatalf("request %d: got allowed, want denied", i)
		}
	}
	s.queue.mu.Lock()
	waiting := len(s.queue.waiting)
	s.queue.mu.Unlock()
	if waiting > maxDenied+1 {
		t.Errorf("batches that wait: got %d, want %d at most", waiting, maxDenied+1)
	}
	release()
	group.Wait()

	omitted := counterOf(t, s, ofKey("key")).DeniedOmitted
	_, total, err := s.History(t.Context(), ofKey("key"), time.Time{}, core.Page{Number: 1, Size: 1})
	if err != nil || omitted == 0 || int64(total-1)+omitted != seconds*core.DeniedPerSecond {
		t.Errorf("denied: got %d recorded and %d omitted, %v, want %d in all and some omitted", total-1, omitted, err, seconds*core.DeniedPerSecond)
	}
}

// TestOmittedIsSaved: how many denials were left out of the history is stored by
// itself, also when nothing is ever allowed again.
func TestOmittedIsSaved(t *testing.T) {
	dir := t.TempDir()
	s := mustOpen(t, dir, Options{})
	known(t, s, "key")
	for range core.DeniedPerSecond + 5 {
		consume(t, s, request("key", 1, 0, noon))
	}
	if err := s.Close(); err != nil {
		t.Fatalf("Close: %v", err)
	}
	s = openIn(t, dir, Options{})
	if got := counterOf(t, s, ofKey("key")).DeniedOmitted; got != 5 {
		t.Errorf("denials left out: got %d, want 5", got)
	}
}

// TestCommitFails: when a commit fails, everyone who waits for it, and everyone who was
// decided on top of it, is told that the store is unavailable. Nothing of it is
// counted, and the next request is decided on what is stored.
func TestCommitFails(t *testing.T) {
	const callers, limit = 32, 40
	s := openIn(t, t.TempDir(), Options{})
	known(t, s, "key")
	for range 10 {
		consume(t, s, request("key", 1, limit, noon))
	}
	waits, release := failing(s)
	defer release()
	var group sync.WaitGroup
	var unavailable atomic.Int64
	try := func() {
		v, err := s.Consume(context.Background(), request("key", 1, limit, noon))
		if !isUnavailable(err) || v.Allowed {
			t.Errorf("Consume: got %v, %v, want %v", v.Allowed, err, core.ErrUnavailable)
		}
		unavailable.Add(1)
	}
	group.Go(try)
	await(t, waits)
	for range callers - 12 {
		group.Go(try)
	}
	waitUntil(t, "all requests wait", func() bool {
		s.queue.mu.Lock()
		defer s.queue.mu.Unlock()
		return len(s.queue.waiting) == 1 && len(s.queue.waiting[0].entries) == 2*(callers-12)
	})
	release()
	group.Wait()
	s.commits(func() error { return nil })
	wantUsed(t, s, ofKey("key"), 10)
	for i := range limit {
		if got, want := consume(t, s, request("key", 1, limit, noon)), i < limit-10; got != want {
			t.Fatalf("request %d after the failure: got allowed %v, want %v", i, got, want)
		}
	}
	wantUsed(t, s, ofKey("key"), limit)
}

// failing lets commits wait until release is called, and then fail.
func failing(s *Store) (waits <-chan struct{}, release func()) {
	first, gate := make(chan struct{}), make(chan struct{})
	var once sync.Once
	s.commits(func() error {
		once.Do(func() { close(first) })
		<-gate
		return errMedium
	})
	return first, sync.OnceFunc(func() { close(gate) })
}

// TestCommitsFailNowAndThen: whatever commits fail, what was answered as allowed is
// counted, and nothing else, and a limit is never exceeded.
func TestCommitsFailNowAndThen(t *testing.T) {
	const callers, requests, keys, limit = 16, 200, 5, 300
	s := openIn(t, t.TempDir(), Options{})
	known(t, s, numbered("key_", keys)...)
	var n atomic.Int64
	s.commits(func() error {
		if n.Add(1)%3 == 0 {
			return errMedium
		}
		return nil
	})
	var allowed [keys]atomic.Int64
	var group sync.WaitGroup
	for i := range callers {
		group.Go(func() {
			for j := range requests {
				key := (i + j) % keys
				c := request(fmt.Sprintf("key_%d", key), 1, limit*keys, noon)
				c.Shared = true // all are decided on the counter of one user
				v, err := s.Consume(context.Background(), c)
				if err != nil && !isUnavailable(err) {
					t.Errorf("Consume: got error %v, want %v", err, core.ErrUnavailable)
				}
				if v.Allowed {
					allowed[key].Add(1)
				}
			}
		})
	}
	group.Wait()
	s.commits(func() error { return nil })
	var sum int64
	for key := range allowed {
		wantUsed(t, s, ofKey(fmt.Sprintf("key_%d", key)), allowed[key].Load())
		sum += allowed[key].Load()
	}
	wantUsed(t, s, ofUser(1), sum)
	if sum == 0 || sum > limit*keys {
		t.Errorf("allowed: got %d, want some and at most %d", sum, limit*keys)
	}
}

// TestDeletedBesideRequests: when a key is deleted while requests with it are
// decided, nothing of it is left: neither does a request that was decided before
// bring its counter back.
func TestDeletedBesideRequests(t *testing.T) {
	s := openIn(t, t.TempDir(), Options{})
	withAccount(t, s)
	update(t, s, withKeys(1, 1))
	known(t, s, "key_other")
	key := newKey(1, 0).ID
	waits, release := blocked(s)
	defer release()
	var allowed atomic.Int64
	var group sync.WaitGroup
	group.Go(func() { consume(t, s, request("key_other", 1, 10, noon)) })
	await(t, waits)
	group.Go(func() { update(t, s, func(tx core.Tx) error { return tx.DeleteKey(key) }) })
	for range 8 {
		group.Go(func() {
			v, err := s.Consume(context.Background(), request(key, 1, 100, noon))
			if err != nil && !errors.Is(err, core.ErrKeyNotFound) {
				t.Errorf("Consume: got error %v, want %v or none", err, core.ErrKeyNotFound)
			}
			if v.Allowed {
				allowed.Add(1)
			}
		})
	}
	release()
	group.Wait()
	if _, err := s.Key(t.Context(), acct, key); err == nil {
		t.Error("Key: got no error, want it deleted")
	}
	wantUsed(t, s, ofKey(key), 0)
	if got, want := allowedIn(t, s, ofUser(1)), allowed.Load()+1; got != want {
		t.Errorf("history of the user: got %d entries, want %d", got, want)
	}
}

// TestFewCounters: requests are decided exactly when there is no room for their
// counters in memory.
func TestFewCounters(t *testing.T) {
	const callers, keys, rounds = 16, 300, 4
	s := openIn(t, t.TempDir(), Options{})
	known(t, s, append(numbered("key_", keys), numbered("key_new", keys)...)...)
	s.counters = newCounters(s.db, 1) // one in each shard
	var allowed atomic.Int64
	var group sync.WaitGroup
	for i := range callers {
		group.Go(func() {
			for j := range keys * rounds {
				n := (i*37 + j) % keys
				if consume(t, s, request(fmt.Sprintf("key_%d", n), int64(n%7+1), rounds, noon)) {
					allowed.Add(1)
				}
			}
		})
	}
	group.Wait()
	if got := allowed.Load(); got != keys*rounds {
		t.Errorf("allowed: got %d, want %d for each of %d keys", got, rounds, keys)
	}
	for n := range keys {
		wantUsed(t, s, ofKey(fmt.Sprintf("key_%d", n)), rounds)
	}
	for n := range keys { // those with denials that were left out were kept until they were saved
		consume(t, s, request(fmt.Sprintf("key_new%d", n), 1, rounds, noon))
	}
	inMemory := 0
	for i := range s.counters.shards {
		inMemory += len(s.counters.shards[i].byID)
	}
	if inMemory > 2*shards {
		t.Errorf("counters in memory: got %d, want about %d", inMemory, shards)
	}
}
