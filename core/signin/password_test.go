package signin_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/service"
	"github.com/limitkeeper/limitkeeper/core/signin"
	"github.com/limitkeeper/limitkeeper/storage/memstore"
)

// hashDuration is the simulated time of one hash.
const hashDuration = 100 * time.Millisecond

// withAttackers runs a test on a service with the account acme and a password, while 100 goroutines
// try wrong passwords without a pause. address returns the address of the nth try. A hash takes
// hashDuration of simulated time.
func withAttackers(t *testing.T, address func(n int) string, test func(t *testing.T, s *service.Service, known signin.Client)) {
	synctest.Test(t, func(t *testing.T) {
		s := service.New(memstore.New(), service.Config{})
		_, _, _, _ = s.CreateAccount(t.Context(), "acme")
		si, _ := signedIn(t, s, "acme")
		s.SignIn.OnHash(func() { time.Sleep(hashDuration) })
		if err := s.SignIn.SetPassword(t.Context(), si, "", password); err != nil {
			t.Fatal(err)
		}
		c, err := s.SignIn.ByPassword(t.Context(), signin.Login{Account: "acme", Password: password}, from("192.0.2.1"))
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var attackers sync.WaitGroup
		var mu sync.Mutex
		n := 0
		for range 100 {
			attackers.Go(func() {
				for ctx.Err() == nil {
					mu.Lock()
					n++
					i := n
					mu.Unlock()
					_, _ = s.SignIn.ByPassword(ctx, signin.Login{Account: fmt.Sprint("name ", i), Password: "wrong"}, from(address(i)))
					time.Sleep(hashDuration / 2)
				}
			})
		}
		time.Sleep(time.Second)
		if got := s.SignIn.Waiting(); got < signin.MaxWaiting/2 {
			t.Errorf("waiting for the hasher: got %d, want many", got)
		}
		test(t, s, signin.Client{Address: address(1), Browser: c.Browser})
		if got := s.SignIn.Waiting(); got > signin.MaxWaiting {
			t.Errorf("waiting for the hasher: got %d, want at most %d", got, signin.MaxWaiting)
		}
		cancel()
		attackers.Wait()
	})
}

// attacks holds functions that return the client address of the nth try. No two tries share an
// address.
var attacks = map[string]func(n int) string{
	"10 networks":            func(n int) string { return fmt.Sprintf("2001:db8:%x:%x::1", n%10, n%65536) },
	"65,536 networks of one": func(n int) string { return fmt.Sprintf("2001:db8:%x::%x", n%65536, n/65536) },
	"2,000 networks of IPv4": func(n int) string { return fmt.Sprintf("10.%d.%d.%d", n%8, n/8%250, n%256) },
}

// While strangers from many addresses keep the hasher busy, a person can still sign in: from
// another network, in a known browser, and by a link.
func TestSignInDuringAttack(t *testing.T) {
	for name, address := range attacks {
		t.Run(name, func(t *testing.T) {
			withAttackers(t, address, func(t *testing.T, s *service.Service, known signin.Client) {
				for i := range 20 {
					c, err := s.SignIn.ByPassword(t.Context(), signin.Login{Account: "acme", Password: password}, known)
					if err != nil {
						t.Errorf("a known browser, attempt %d: %v", i, err)
					}
					known.Browser = c.Browser
				}
				for i := range 20 {
					stranger := from(fmt.Sprintf("198.51.100.%d", i))
					if _, err := s.SignIn.ByPassword(t.Context(), signin.Login{Account: "acme", Password: password}, stranger); err != nil {
						t.Errorf("another network, attempt %d: %v", i, err)
					}
				}
				begun := time.Now()
				_, link, _, _ := s.SignIn.NewLink(t.Context(), "acme")
				if _, err := s.SignIn.ByLink(t.Context(), link, from("2001:db8::1")); err != nil || time.Since(begun) > 0 {
					t.Errorf("by a link: %v after %v, want no wait", err, time.Since(begun))
				}
			})
		})
	}
}

// A known browser waits for no stranger, even if every stranger has a new network. Unknown browsers
// are then refused after a bounded time.
func TestKnownBrowserGoesFirst(t *testing.T) {
	fresh := func(n int) string { return fmt.Sprintf("%x:%x::1", 0x2001+n/65536, n%65536) }
	withAttackers(t, fresh, func(t *testing.T, s *service.Service, known signin.Client) {
		for range 5 {
			begun := time.Now()
			c, err := s.SignIn.ByPassword(t.Context(), signin.Login{Account: "acme", Password: password}, known)
			if err != nil || time.Since(begun) > 2*hashDuration {
				t.Fatalf("a known browser: %v after %v, want its turn after one other", err, time.Since(begun))
			}
			known.Browser = c.Browser
			begun = time.Now()
			if _, err := s.SignIn.ByPassword(t.Context(), signin.Login{Account: "acme", Password: password}, from("198.51.100.1")); err != nil && err != signin.ErrBusy || time.Since(begun) > 11*time.Second {
				t.Errorf("an unknown browser: %v after %v, want an answer within 11 s", err, time.Since(begun))
			}
		}
	})
}

// Accounts that sign in without a pause, with right passwords, get at most every other hash:
// otherwise the owner of two accounts could lock out every unknown browser.
func TestKnownBrowsersLeaveTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := service.New(memstore.New(), service.Config{})
		s.SignIn.OnHash(func() { time.Sleep(hashDuration) })
		ctx, cancel := context.WithCancel(t.Context())
		var owners sync.WaitGroup
		for _, name := range []string{"one", "two", "three"} {
			_, _, _, _ = s.CreateAccount(ctx, name)
			si, _ := signedIn(t, s, name)
			if err := s.SignIn.SetPassword(ctx, si, "", password); err != nil {
				t.Fatal(err)
			}
			c, err := s.SignIn.ByPassword(ctx, signin.Login{Account: name, Password: password}, from("192.0.2.1"))
			if err != nil {
				t.Fatal(err)
			}
			owners.Go(func() {
				for ctx.Err() == nil {
					if next, err := s.SignIn.ByPassword(ctx, signin.Login{Account: name, Password: password}, signin.Client{Address: "192.0.2.1", Browser: c.Browser}); err == nil {
						c = next
					}
				}
			})
		}
		time.Sleep(time.Second)
		for range 5 {
			time.Sleep(10 * hashDuration) // the rest after the stranger before
			begun := time.Now()
			_, err := s.SignIn.ByPassword(t.Context(), signin.Login{Account: "nobody", Password: password}, from("198.51.100.1"))
			if waited := time.Since(begun); err != signin.ErrSignIn || waited > 3*hashDuration {
				t.Errorf("a stranger: %v after %v, want an answer after at most two other passwords", err, waited)
			}
		}
		cancel()
		owners.Wait()
	})
}

// After the password of a stranger the next stranger waits nine times as long as the hash took:
// strangers use a tenth of one processor, however many try to sign in.
func TestStrangersTakeATenth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := service.New(memstore.New(), service.Config{})
		hashes := 0
		s.SignIn.OnHash(func() { time.Sleep(hashDuration); hashes++ })
		begun := time.Now()
		for i := range 10 {
			if _, err := s.SignIn.ByPassword(t.Context(), signin.Login{Account: fmt.Sprint("name ", i), Password: password}, from(fmt.Sprintf("198.51.%d.1", i))); err != signin.ErrSignIn {
				t.Errorf("stranger %d: got %v, want %v", i, err, signin.ErrSignIn)
			}
		}
		if took := time.Since(begun); hashes != 10 || took != 91*hashDuration {
			t.Errorf("10 strangers: got %d hashes in %v, want 10 in %v", hashes, took, 91*hashDuration)
		}
		time.Sleep(10 * hashDuration)
		begun = time.Now()
		_, err := s.SignIn.ByPassword(t.Context(), signin.Login{Account: "nobody", Password: password}, from("203.0.113.1"))
		if took := time.Since(begun); err != signin.ErrSignIn || took != hashDuration {
			t.Errorf("a stranger after a pause: %v after %v, want no wait", err, took)
		}
	})
}

// A password that waits too long is refused, and a canceled one leaves the queue. Neither counts as
// wrong, and the hasher serves the others.
func TestHasherGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := service.New(memstore.New(), service.Config{})
		release := make(chan struct{})
		s.SignIn.OnHash(func() { <-release })
		try := func(ctx context.Context, address string) chan error {
			done := make(chan error, 1)
			go func() {
				_, err := s.SignIn.ByPassword(ctx, signin.Login{Account: "acme", Password: password}, from(address))
				done <- err
			}()
			synctest.Wait()
			return done
		}
		first := try(t.Context(), "192.0.2.1")
		ctx, cancel := context.WithCancel(t.Context())
		gone, late := try(ctx, "192.0.2.2"), try(t.Context(), "192.0.2.3")
		cancel()
		want(t, "a client that went away", <-gone, context.Canceled)
		want(t, "a client that waited too long", <-late, signin.ErrBusy)
		if n, _ := s.SignIn.Attempts(); n != 1 {
			t.Errorf("attempts that count: got %d, want 1", n)
		}
		close(release)
		want(t, "the first", <-first, signin.ErrSignIn)
		want(t, "the next", <-try(t.Context(), "192.0.2.4"), signin.ErrSignIn)
	})
}

// A network has a bound of its own, above that of an address: rotating addresses within a network
// gives no more guesses.
func TestWrongPasswordsOfNetwork(t *testing.T) {
	for _, tc := range []struct{ name, address, other string }{
		{"IPv4 /24", "198.51.100.%d", "198.51.101.1"},
		{"IPv6 /48", "2001:db8:0:%x::1", "2001:db8:1::1"},
		{"IPv4 in IPv6", "::ffff:198.51.100.%d", "198.51.101.1"},
	} {
		now := at("2026-03-05T10:00:00Z")
		s := newService(&now)
		s.SignIn.OnHash(func() {})
		tried := 0
		for i := range 2 * signin.WrongPasswordsNetwork {
			_, err := s.SignIn.ByPassword(t.Context(), signin.Login{Account: fmt.Sprint("name ", i), Password: "wrong"}, from(fmt.Sprintf(tc.address, i)))
			if errors.Is(err, signin.ErrSignIn) {
				tried++
			}
		}
		if tried != signin.WrongPasswordsNetwork {
			t.Errorf("%s: got %d passwords tried, want %d", tc.name, tried, signin.WrongPasswordsNetwork)
		}
		_, err := s.SignIn.ByPassword(t.Context(), signin.Login{Account: "name", Password: "wrong"}, from(tc.other))
		want(t, tc.name+": another network", err, signin.ErrSignIn)
	}
}

// Strangers cannot lock a known browser out by wrong passwords. The secret of a known browser gives
// as many guesses as a name has, for one account only, until it expires or is forgotten.
func TestKnownBrowserIsNotLockedOut(t *testing.T) {
	now := at("2026-03-05T10:00:00Z")
	s := newService(&now)
	s.SignIn.OnHash(func() {})
	for _, name := range []string{"acme", "other"} {
		_, _, _, _ = s.CreateAccount(t.Context(), name)
		si, _ := signedIn(t, s, name)
		if err := s.SignIn.SetPassword(t.Context(), si, "", password); err != nil {
			t.Fatal(err)
		}
	}
	lock := func(name string) {
		for i := range signin.WrongPasswords {
			_, _ = s.SignIn.ByPassword(t.Context(), signin.Login{Account: name, Password: "wrong"}, from(fmt.Sprintf("10.0.%d.1", i)))
		}
		_, err := s.SignIn.ByPassword(t.Context(), signin.Login{Account: name, Password: password}, from("192.0.2.1"))
		want(t, "an unknown browser", err, signin.ErrTooManyPasswords)
	}
	signIn := func(name, password string, b signin.Client) error {
		_, err := s.SignIn.ByPassword(t.Context(), signin.Login{Account: name, Password: password}, b)
		return err
	}
	_, link, _, _ := s.SignIn.NewLink(t.Context(), "acme")
	byLink, err := s.SignIn.ByLink(t.Context(), link, signin.Client{})
	if err != nil {
		t.Fatal(err)
	}
	lock("acme")
	c, err := s.SignIn.ByPassword(t.Context(), signin.Login{Account: "acme", Password: password}, signin.Client{Browser: byLink.Browser})
	if err != nil {
		t.Fatalf("a known browser: %v", err)
	}
	known := signin.Client{Address: "192.0.2.1", Browser: c.Browser}
	want(t, "the replaced secret of a browser", signIn("acme", password, signin.Client{Browser: byLink.Browser}), signin.ErrTooManyPasswords)
	_, err = s.SignIn.SignedIn(t.Context(), c.Browser, true)
	want(t, "the secret of a browser as a session", err, signin.ErrSession)
	for range signin.WrongPasswords {
		want(t, "a wrong password in a known browser", signIn("acme", "wrong", known), signin.ErrSignIn)
	}
	want(t, "one more", signIn("acme", password, known), signin.ErrTooManyPasswords)

	now = now.Add(signin.WrongPasswordsIn)
	lock("other")
	want(t, "a browser of another account", signIn("other", password, known), signin.ErrTooManyPasswords)
	lock("acme")
	now = now.Add(core.BrowserLife - signin.WrongPasswordsIn)
	lock("acme")
	want(t, "an expired browser", signIn("acme", password, known), signin.ErrTooManyPasswords)

	si, _ := signedIn(t, s, "acme")
	_, link, _, _ = s.SignIn.NewLink(t.Context(), "acme")
	c, _ = s.SignIn.ByLink(t.Context(), link, signin.Client{})
	if err := signIn("acme", password, signin.Client{Browser: c.Browser}); err != nil {
		t.Errorf("a known browser again: %v", err)
	}
	if err := s.SignIn.SignOutEverywhere(t.Context(), si); err != nil {
		t.Fatal(err)
	}
	want(t, "a browser after signing out everywhere", signIn("acme", password, signin.Client{Browser: c.Browser}), signin.ErrTooManyPasswords)
}

// Attempts with new names and networks take bounded memory, and none after 15 minutes.
func TestAttemptsAreBounded(t *testing.T) {
	now := at("2026-03-05T10:00:00Z")
	s := newService(&now)
	s.SignIn.OnHash(func() {})
	for i := range signin.MaxAttempts + 1000 {
		_, _ = s.SignIn.ByPassword(t.Context(), signin.Login{Account: fmt.Sprint("name ", i), Password: "wrong"}, from(fmt.Sprintf("%x:%x:%x::1", 0x2000+i, 1, 1)))
	}
	if n, subjects := s.SignIn.Attempts(); n != signin.MaxAttempts || subjects > 4*n {
		t.Errorf("got %d attempts of %d subjects, want %d of at most 4 each", n, subjects, signin.MaxAttempts)
	}
	now = now.Add(signin.WrongPasswordsIn)
	_, _ = s.SignIn.ByPassword(t.Context(), signin.Login{Account: "name", Password: "wrong"}, from("192.0.2.1"))
	if n, subjects := s.SignIn.Attempts(); n != 1 || subjects != 4 {
		t.Errorf("after 15 minutes: got %d attempts of %d subjects, want 1 of 4", n, subjects)
	}
}

// The parameters of a stored hash are bounded at each sign-in, wherever the hash comes from: they cost the memory and the CPU of all accounts.
func TestStoredHashIsBounded(t *testing.T) {
	for _, parameters := range []string{"m=4294967295,t=2,p=1", "m=19456,t=4294967295,p=1", "m=19456,t=2,p=255", "m=65537,t=2,p=1", "m=19456,t=4,p=1", "m=019456,t=2,p=1"} {
		store := memstore.New()
		s := service.New(store, service.Config{})
		a, _, _, err := s.CreateAccount(t.Context(), "acme")
		if err != nil {
			t.Fatal(err)
		}
		hash := "$argon2id$v=19$" + parameters + "$MDEyMzQ1Njc4OWFiY2RlZg$MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY"
		if _, err := store.UpdateAccess(t.Context(), a.ID, func(ac *core.Access) error { ac.Password = hash; return nil }); err != nil {
			t.Fatal(err)
		}
		_, err = s.SignIn.ByPassword(t.Context(), signin.Login{Account: "acme", Password: password}, from("192.0.2.1")) // a larger cost ends the test by its memory or its time
		if err == nil || errors.Is(err, signin.ErrSignIn) {
			t.Errorf("%s: got %v, want that the hash is refused", parameters, err)
		}
	}
}
