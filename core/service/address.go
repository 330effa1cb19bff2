package service

import (
	"hash/maphash"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/limitkeeper/limitkeeper/core"
)

// The bounds of the addresses that a [Service] remembers.
const (
	maxAddresses     = 20_000           // the addresses that were used last stay; they take about 8 MB
	callersOfAddress = 4                // the callers that used an address last
	noteAddressAgain = 10 * time.Minute // after which a caller with the same address is noted again, so that it stays
)

// recentAddresses remembers the callers of the last addresses: keys, and users without a key. Nothing is stored: a start forgets them.
type recentAddresses struct {
	mu   sync.Mutex
	seed maphash.Seed
	of   *simplelru.LRU[addressRef, *callers]
}

// callers are the keys and users that used an address last, the last one first. The others are zero.
type callers [callersOfAddress]core.CounterID

// add puts a caller first.
func (c *callers) add(id core.CounterID) {
	at := slices.Index(c[:], id)
	if at < 0 {
		at = len(c) - 1
	}
	copy(c[1:at+1], c[:at])
	c[0] = id
}

// addressRef is the address of requests to an account.
type addressRef struct{ account, ip string }

func newRecentAddresses() recentAddresses {
	of, err := simplelru.NewLRU[addressRef, *callers](maxAddresses, nil)
	if err != nil {
		panic(err) // the size is positive
	}
	return recentAddresses{seed: maphash.MakeSeed(), of: of}
}

// note remembers the address of a request. last is the hash of the address that the caller used last: the usual request of a caller with one
// address takes no lock.
func (a *recentAddresses) note(c *core.Consumption, last *atomic.Uint64) {
	if c.Entry.IP == "" {
		return
	}
	hash := maphash.String(a.seed, c.Entry.IP) ^ uint64(c.Entry.At.Unix()/int64(noteAddressAgain/time.Second))
	if last.Swap(hash) == hash {
		return
	}
	caller := core.CounterID{Account: c.Account, KeyID: c.KeyID}
	if c.KeyID == "" {
		caller.UserID = c.UserID
	}
	ref := addressRef{c.Account, c.Entry.IP}
	a.mu.Lock()
	defer a.mu.Unlock()
	list, known := a.of.Get(ref)
	if !known {
		list, ref.ip = new(callers), strings.Clone(ref.ip) // it may be a part of a long body
		a.of.Add(ref, list)
	}
	list.add(caller)
}

// callers returns the keys and users whose requests came from an address, the last one first.
func (a *recentAddresses) callers(account, ip string) (ids []core.CounterID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if list, known := a.of.Get(addressRef{account, ip}); known {
		ids = slices.DeleteFunc(slices.Clone(list[:]), func(id core.CounterID) bool { return id == core.CounterID{} })
	}
	return ids
}
