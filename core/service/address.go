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
	maxAddresses       = 20_000           // of all accounts; the least recently used address is evicted. They take about 8 MB
	callersOfAddress   = 4                // the latest callers of an address
	recordAddressAgain = 10 * time.Minute // a caller that keeps its address is recorded again after this time, so that the address is not evicted
)

// recentAddresses has the latest callers of each recent address: keys, and users without a key. It is in memory only.
type recentAddresses struct {
	mu        sync.Mutex
	seed      maphash.Seed
	byAddress *simplelru.LRU[addressRef, *callers]
}

// callers are the latest keys and users with one address, newest first. Unused places are zero.
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
	byAddress, err := simplelru.NewLRU[addressRef, *callers](maxAddresses, nil)
	if err != nil {
		panic(err) // the size is positive
	}
	return recentAddresses{seed: maphash.MakeSeed(), byAddress: byAddress}
}

// record records the address of a request. last is the hash of the previous address of the caller: while a caller keeps its address, its requests
// take no lock.
func (a *recentAddresses) record(c *core.Consumption, last *atomic.Uint64) {
	if c.Entry.IP == "" {
		return
	}
	hash := maphash.String(a.seed, c.Entry.IP) ^ uint64(c.Entry.At.Unix()/int64(recordAddressAgain/time.Second))
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
	list, known := a.byAddress.Get(ref)
	if !known {
		list, ref.ip = new(callers), strings.Clone(ref.ip) // without Clone, the address may keep a long body in memory
		a.byAddress.Add(ref, list)
	}
	list.add(caller)
}

// callers returns the latest keys and users whose requests came from an address, newest first.
func (a *recentAddresses) callers(account, ip string) (ids []core.CounterID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if list, known := a.byAddress.Get(addressRef{account, ip}); known {
		ids = slices.DeleteFunc(slices.Clone(list[:]), func(id core.CounterID) bool { return id == core.CounterID{} })
	}
	return ids
}
