package redisstore_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/service"
	"github.com/limitkeeper/limitkeeper/storage/redisstore"
	"github.com/limitkeeper/limitkeeper/storage/redisstore/redistest"
)

// twoNodes are two services on one server, each with its own store and key cache. The second connects
// through a relay.
type twoNodes struct {
	server  *redistest.Server
	relay   *relay
	store   *redisstore.Store // of node b
	a, b    *service.Service
	account string
	key     *core.Key
	secret  string
}

func newTwoNodes(t *testing.T) *twoNodes {
	t.Helper()
	p := &twoNodes{server: redistest.Start(t)}
	p.relay = newRelay(t, p.server.Addr())
	p.store = openFaulty(t, faulty(p.relay.Addr()))
	p.a, p.b = service.New(openFaulty(t, faulty(p.server.Addr())), service.Config{}), service.New(p.store, service.Config{})
	ctx := t.Context()
	a, _, _, err := p.a.CreateAccount(ctx, "account")
	if err != nil {
		t.Fatal(err)
	}
	p.account = a.ID
	plan, err := p.a.CreatePlan(ctx, p.account, core.PlanPatch{Name: ref("plan"), Limit: core.Some(int64(core.MaxLimit)), Period: ref("day")})
	if err != nil {
		t.Fatal(err)
	}
	u, err := p.a.CreateUser(ctx, p.account, core.UserPatch{Name: ref("user"), PlanID: core.Some(plan.ID)})
	if err != nil {
		t.Fatal(err)
	}
	if p.key, p.secret, err = p.a.CreateKey(ctx, p.account, core.KeyPatch{Name: ref("key"), UserID: &u.ID}); err != nil {
		t.Fatal(err)
	}
	p.fillCache(t)
	return p
}

func ref[T any](v T) *T { return &v }

// fillCache loads the key into the cache of b, and waits until b trusts it.
func (p *twoNodes) fillCache(t testing.TB) {
	t.Helper()
	until(t, "b to answer from memory", func() bool {
		before := p.b.Stats().CacheMisses
		return p.validate(t) == service.Allowed && p.b.Stats().CacheMisses == before
	})
}

// validate validates the key on b.
func (p *twoNodes) validate(t testing.TB) service.Outcome {
	d, err := p.b.Validate(context.Background(), p.account, service.Request{Secret: p.secret, Endpoint: "/", Method: "GET", Cost: 1})
	if err != nil && !errors.Is(err, core.ErrUnavailable) {
		t.Errorf("Validate: %v", err)
	}
	return d.Outcome
}

// disable sets the status of the key through a.
func (p *twoNodes) disable(t testing.TB, status core.KeyStatus) {
	t.Helper()
	_, err := p.a.UpdateKey(t.Context(), p.account, p.key.ID, core.KeyPatch{Status: ref(string(status))})
	if err != nil {
		t.Fatalf("UpdateKey: %v", err)
	}
}

// awaitRefused returns for how long after from b allowed the key. It fails the test if that is longer than
// bound.
func (p *twoNodes) awaitRefused(t testing.TB, from time.Time, bound time.Duration) time.Duration {
	t.Helper()
	last := time.Duration(0)
	for {
		begun := time.Now()
		if p.validate(t) != service.Allowed {
			break
		}
		last = begun.Sub(from)
		if last > bound {
			t.Fatalf("a disabled key passes for %v", last)
		}
	}
	if last > bound {
		t.Errorf("a disabled key passed for %v, want %v at most", last, bound)
	}
	return last
}

// A key prefix that is set through one process is accepted and masked by another within a second.
func TestKeyPrefixElsewhere(t *testing.T) {
	p := newTwoNodes(t)
	regenerate := func(prefix string) {
		t.Helper()
		if _, err := p.a.UpdateAccount(t.Context(), p.account, core.AccountPatch{KeyPrefix: &prefix}); err != nil {
			t.Fatal(err)
		}
		var err error
		if _, p.secret, err = p.a.RegenerateKey(t.Context(), p.account, p.key.ID, 0); err != nil {
			t.Fatal(err)
		}
	}
	for _, prefix := range []string{"elsewhere_a_", "elsewhere_b_"} { // b has the prefixes in its cache when the second is set
		regenerate(prefix)
		from := time.Now()
		until(t, "b to accept a key with the prefix "+prefix, func() bool {
			after := time.Since(from)
			got := p.validate(t)
			if got != service.Allowed && got != "" && after > time.Second { // "": the store gave no answer
				t.Fatalf("b refuses a key with the prefix %s after %v, want a second at most", prefix, after)
			}
			return got == service.Allowed
		})
	}
	k, err := p.b.Key(t.Context(), p.account, p.key.ID)
	if want := "elsewhere_b_…" + p.secret[len(p.secret)-4:]; err != nil || k.Hint != want {
		t.Errorf("the key on b: got the hint %q, %v, want %q", k.Hint, err, want)
	}
}

// A key that is disabled through one process is refused by another at once.
func TestDisabledElsewhere(t *testing.T) {
	p := newTwoNodes(t)
	ctx, quit := context.WithCancel(t.Context())
	var load sync.WaitGroup
	for range 4 { // concurrent lookups of the key
		load.Go(func() {
			for ctx.Err() == nil {
				p.validate(t)
				time.Sleep(pause)
			}
		})
	}
	var lags []time.Duration
	for range 200 {
		p.disable(t, core.KeyInactive)
		lags = append(lags, p.awaitRefused(t, time.Now(), time.Second))
		p.disable(t, core.KeyActive)
		until(t, "the key to pass again", func() bool { return p.validate(t) == service.Allowed })
	}
	quit()
	load.Wait()
	median, worst := medianAndMax(lags)
	t.Logf("a key that was disabled passed elsewhere for %v (median), %v (worst) of %d, from the answer on", median, worst, len(lags))
}

// Without invalidations, no process allows a disabled key from its cache for more than a second, however
// the connection was lost.
func TestDisabledWithoutChannel(t *testing.T) {
	t.Parallel()
	for name, lose := range map[string]func(*relay){
		"cut":         (*relay).refuse,
		"stalled":     func(r *relay) { r.stall(isInvalidationConn) },
		"all stalled": func(r *relay) { r.stall(func(*relayed) bool { return true }) },
	} {
		t.Run(name, func(t *testing.T) {
			p := newTwoNodes(t)
			for range 3 {
				lose(p.relay)
				from := time.Now()
				p.disable(t, core.KeyInactive)
				t.Logf("passed for %v after the channel was lost", p.awaitRefused(t, from, time.Second+slack))
				time.Sleep(200 * time.Millisecond)
				p.relay.resume()
				until(t, "b to know that the key is disabled", func() bool {
					got := p.validate(t)
					if since := time.Since(from); got == service.Allowed && since > time.Second+slack {
						t.Fatalf("a key passed %v after it was disabled, while the connection was cut", since)
					}
					return got == service.Disabled
				})
				p.disable(t, core.KeyActive)
				p.fillCache(t)
			}
		})
	}
}

// A key that FLUSHALL has deleted is never allowed again. Until the operator accepts the loss, the store
// refuses to decide. Afterwards the key is unknown. It may also be unknown in the moments before the store
// notices the loss.
func TestDeletedByFlush(t *testing.T) {
	p := newTwoNodes(t)
	p.server.Do(t, "FLUSHALL")
	p.awaitRefused(t, time.Now(), time.Second)
	request := service.Request{Secret: p.secret, Endpoint: "/", Method: "GET", Cost: 1}
	until(t, "the loss to be noticed", func() bool {
		d, err := p.b.Validate(t.Context(), p.account, request)
		if err == nil && d.Outcome != service.Unknown {
			t.Fatalf("a deleted key is answered with %q", d.Outcome)
		}
		return errors.Is(err, core.ErrUnavailable)
	})
	until(t, "a loss to accept", func() bool {
		lost, err := p.store.Accept(t.Context())
		return err == nil && len(lost) == 1
	})
	until(t, "an unknown key", func() bool { return p.validate(t) == service.Unknown })
}

// Two nodes that create concurrently do not exceed the caps of an account.
func TestCountCapsOnTwoNodes(t *testing.T) {
	p := newTwoNodes(t)
	const most = 5
	for _, s := range []*service.Service{p.a, p.b} {
		tunables := service.DefaultTunables()
		tunables.MaxUsers, tunables.MaxKeys, tunables.MaxPlans = most, most, most
		s.Tune(tunables)
	}
	var wg sync.WaitGroup
	for _, s := range []*service.Service{p.a, p.b, p.a, p.b} {
		wg.Go(func() {
			for range most {
				_, err1 := s.CreateUser(t.Context(), p.account, core.UserPatch{Name: ref("user")})
				_, _, err2 := s.CreateKey(t.Context(), p.account, core.KeyPatch{Name: ref("key"), UserID: &p.key.UserID})
				_, err3 := s.CreatePlan(t.Context(), p.account, core.PlanPatch{Name: ref("plan"), Limit: core.Some(int64(1)), Period: ref("day")})
				for _, err := range []error{err1, err2, err3} {
					if err != nil && core.ErrorCode(err) != core.CodeValidation {
						t.Errorf("create: %v", err)
					}
				}
			}
		})
	}
	wg.Wait()
	_, users, err1 := p.b.Users(t.Context(), p.account, core.UserFilter{}, core.Page{Number: 1, Size: 1})
	_, keys, err2 := p.b.Keys(t.Context(), p.account, core.KeyFilter{}, core.Page{Number: 1, Size: 1})
	_, plans, err3 := p.b.Plans(t.Context(), p.account, core.Page{Number: 1, Size: 1})
	if err := errors.Join(err1, err2, err3); err != nil || users != most || keys != most || plans != most {
		t.Errorf("got %d users, %d keys, %d plans, %v, want %d of each", users, keys, plans, err, most)
	}
}
