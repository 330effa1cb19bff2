package service

import (
	"hash/maphash"
	"net/netip"
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
	maxAddresses       = 20_000           // addresses of all accounts. They take about 8 MB
	callersOfAddress   = 4                // the latest callers of an address
	recordAddressAgain = 10 * time.Minute // a caller that keeps its address is recorded again after this time, so that the address is not evicted
)

// recentAddresses has the latest callers of each recent address: keys, and users without a key. It is in memory only. Beyond maxAddresses, evict
// removes the least recently used address of an account.
type recentAddresses struct {
	mu        sync.Mutex
	seed      maphash.Seed
	byAccount map[string]*simplelru.LRU[string, *callers]
	n         int // addresses of all accounts
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

func newRecentAddresses() recentAddresses {
	return recentAddresses{seed: maphash.MakeSeed(), byAccount: map[string]*simplelru.LRU[string, *callers]{}}
}

// parseAddress returns an IP address in its canonical form, and reports whether the text is an address. It accepts every spelling of IPv6, an IPv4-mapped
// IPv6 address, an address in brackets, and an address with a port.
func parseAddress(text string) (string, bool) {
	a, err := netip.ParseAddr(strings.TrimSuffix(strings.TrimPrefix(text, "["), "]"))
	if err != nil {
		var p netip.AddrPort
		if p, err = netip.ParseAddrPort(text); err != nil {
			return text, false
		}
		a = p.Addr()
	}
	return a.Unmap().String(), true
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
	ip, _ := parseAddress(c.Entry.IP)
	a.mu.Lock()
	defer a.mu.Unlock()
	of := a.byAccount[c.Account]
	if of == nil {
		var err error
		if of, err = simplelru.NewLRU[string, *callers](maxAddresses+1, nil); err != nil {
			panic(err) // the size is positive
		}
		a.byAccount[c.Account] = of
	}
	list, known := of.Get(ip)
	if !known {
		list = new(callers)
		of.Add(strings.Clone(ip), list) // without Clone, the address may keep a long body in memory
		a.n++
		a.evict(of)
	}
	list.add(caller)
}

// evict removes an address if there are more than maxAddresses. of has the addresses of the account of a new address. If this account has more than its
// share, evict removes its least recently used address. Otherwise, evict removes the least recently used address of the account with the most addresses.
func (a *recentAddresses) evict(of *simplelru.LRU[string, *callers]) {
	if a.n <= maxAddresses {
		return
	}
	if of.Len() <= maxAddresses/len(a.byAccount) {
		for _, other := range a.byAccount {
			if other.Len() > of.Len() {
				of = other
			}
		}
	}
	of.RemoveOldest()
	a.n--
}

// callers returns the latest keys and users whose requests came from an address, newest first.
func (a *recentAddresses) callers(account, ip string) (ids []core.CounterID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if of := a.byAccount[account]; of != nil {
		if list, known := of.Peek(ip); known {
			ids = slices.DeleteFunc(slices.Clone(list[:]), func(id core.CounterID) bool { return id == core.CounterID{} })
		}
	}
	return ids
}
