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
	for i := range maxAddresses {
		note("acct", "a", fmt.Sprint(i))
	}
	want("acct", "203.0.113.7", "")
	want("acct", "0", "a0 ")
}
