package service

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
)

// recentAddresses has the latest four callers of each of the latest 20,000 addresses, the latest caller first.
func TestRecentAddresses(t *testing.T) {
	a, now := newRecentAddresses(), time.Unix(1_800_000_000, 0)
	last := map[string]*atomic.Uint64{}
	note := func(account, key, ip string) {
		if last[account+key] == nil {
			last[account+key] = new(atomic.Uint64)
		}
		a.record(&core.Consumption{Account: account, KeyID: key, UserID: 1, Entry: core.Entry{At: now, IP: ip}}, last[account+key])
	}
	want := func(account, ip, want string) {
		t.Helper()
		got := ""
		for _, id := range a.callers(account, ip) {
			got += fmt.Sprint(id.KeyID, id.UserID, " ")
		}
		if got != want {
			t.Errorf("callers of %s in %s: got %q, want %q", ip, account, got, want)
		}
	}
	for _, key := range []string{"a", "b", "c", "b", "d"} {
		note("acct", key, "203.0.113.7")
	}
	want("acct", "203.0.113.7", "d0 c0 b0 a0 ") // b had the same address as before
	now = now.Add(recordAddressAgain)
	note("acct", "b", "203.0.113.7")
	note("acct", "e", "203.0.113.7")
	want("acct", "203.0.113.7", "e0 b0 d0 c0 ")
	note("acct", "", "203.0.113.8")
	want("acct", "203.0.113.8", "1 ")
	want("other", "203.0.113.7", "")
	note("acct", "a", "")
	want("acct", "", "")
}

// An address is found however it is written.
func TestAddressesInAnyForm(t *testing.T) {
	a, last := newRecentAddresses(), new(atomic.Uint64)
	for seen, asked := range map[string]string{
		"2001:db8::1": "2001:DB8:0:0::1", "2001:DB8::2": "[2001:db8::2]:443", "203.0.113.1": "::ffff:203.0.113.1", "203.0.113.2:51234": "203.0.113.2",
		"::ffff:203.0.113.3": "203.0.113.3", "fe80::1%eth0": "[fe80::1%eth0]", "unknown": "unknown",
	} {
		a.record(&core.Consumption{Account: "acct", KeyID: seen, Entry: core.Entry{At: time.Unix(1_800_000_000, 0), IP: seen}}, last)
		ip, is := parseAddress(asked)
		if got := a.callers("acct", ip); len(got) != 1 || got[0].KeyID != seen || is == (seen == "unknown") {
			t.Errorf("%s, seen as %s: got %v, an address: %v", asked, seen, got, is)
		}
	}
}

// The number of addresses is bounded, and an account with many of them takes no other account's.
func TestRecentAddressesAreShared(t *testing.T) {
	a, last := newRecentAddresses(), new(atomic.Uint64)
	note := func(account, ip string) {
		a.record(&core.Consumption{Account: account, KeyID: "a", Entry: core.Entry{At: time.Unix(1_800_000_000, 0), IP: ip}}, last)
	}
	seen := func(account, ip string) int { return len(a.callers(account, ip)) }
	note("acct", "203.0.113.7")
	for i := range maxAddresses + 10 {
		note("many", fmt.Sprint(i))
	}
	if a.n != maxAddresses || seen("acct", "203.0.113.7") != 1 || seen("many", "10") != 0 || seen("many", "11") != 1 {
		t.Errorf("%d addresses are left, want %d, those of the other account, and the last ones", a.n, maxAddresses)
	}
	for i := range 10 {
		note("acct", fmt.Sprint(i))
	}
	if a.n != maxAddresses || seen("acct", "203.0.113.7") != 1 || seen("many", "20") != 0 || seen("many", "21") != 1 {
		t.Errorf("%d addresses are left, want %d, and those of the account with few", a.n, maxAddresses)
	}
}
