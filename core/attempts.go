package core

import (
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"
)

// The bounds of guessing a password.
const (
	WrongPasswords   = 10
	WrongPasswordsIn = 15 * time.Minute
)

// attempts are the wrong passwords of the last quarter of an hour, by what they were tried
// for. One that is being tried counts as wrong until it is known to be right, so that
// trying many at once is of no use.
type attempts struct {
	mu    sync.Mutex
	of    map[string][]*attempt
	sweep int // forget what is over when there are so many
}

// attempt is one password that is tried, for several things at once.
type attempt struct {
	all  *attempts
	at   time.Time
	keys []string
}

// nameAttempt and addressAttempt are what passwords are tried for. A name may be any text:
// its digest is never long. Of an IPv6 address the network counts, for that is what one
// has.
func nameAttempt(name string) string {
	d := DigestOf(name)
	return string(d[:])
}

func addressAttempt(address string) string {
	a, err := netip.ParseAddr(address)
	if err != nil {
		return nameAttempt("address " + address)
	}
	if a = a.Unmap().WithZone(""); a.Is6() {
		return netip.PrefixFrom(a, 64).Masked().String()
	}
	return a.String()
}

func newAttempts() *attempts { return &attempts{of: map[string][]*attempt{}, sweep: minSweep} }

// begin notes an attempt, unless there were too many for one of the keys.
func (a *attempts) begin(now time.Time, keys ...string) (*attempt, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.of) >= a.sweep {
		for k := range maps.Clone(a.of) {
			a.recentLocked(k, now)
		}
		a.sweep = max(minSweep, 2*len(a.of))
	}
	for _, k := range keys {
		if len(a.recentLocked(k, now)) >= WrongPasswords {
			return nil, false
		}
	}
	t := &attempt{a, now, keys}
	for _, k := range keys {
		a.of[k] = append(a.of[k], t)
	}
	return t, true
}

// recentLocked returns the attempts that still count.
func (a *attempts) recentLocked(key string, now time.Time) []*attempt {
	list := slices.DeleteFunc(a.of[key], func(t *attempt) bool { return now.Sub(t.at) >= WrongPasswordsIn })
	a.putLocked(key, list)
	return list
}

func (a *attempts) putLocked(key string, list []*attempt) {
	if len(list) == 0 {
		delete(a.of, key)
		return
	}
	a.of[key] = list
}

// forget takes back an attempt that was not wrong.
func (t *attempt) forget() {
	t.all.mu.Lock()
	defer t.all.mu.Unlock()
	for _, k := range t.keys {
		t.all.putLocked(k, slices.DeleteFunc(t.all.of[k], func(u *attempt) bool { return u == t }))
	}
}
