package redisstore_test

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/secrets"
	"github.com/limitkeeper/limitkeeper/storage/redisstore"
	"github.com/limitkeeper/limitkeeper/storage/redisstore/redistest"
	"github.com/limitkeeper/limitkeeper/storage/storetest"
)

// expires matches the names of keys that expire after the removal of an account: tombstones, versions and ended holds.
var expires = regexp.MustCompile(`(\}[xw]:|\{registry\}version:|\}version$)`)

// leftIn returns the keys and hash fields of a server that name an account and do not expire within two days.
func leftIn(t *testing.T, server *redistest.Server, account string) (left []string) {
	t.Helper()
	for _, key := range strings.Fields(server.Do(t, "KEYS", "*")) {
		ttl, err := strconv.Atoi(strings.TrimSpace(server.Do(t, "TTL", key)))
		if err != nil {
			t.Fatal(err)
		}
		switch {
		case strings.Contains(key, account) && (ttl < 0 || ttl > 48*3600+60 || !expires.MatchString(key)):
			left = append(left, fmt.Sprintf("%s (TTL %d)", key, ttl))
		case strings.HasPrefix(key, redisstore.DefaultPrefix+"d:") && strings.Contains(server.Do(t, "GET", key), account):
			left = append(left, key)
		}
	}
	for _, hash := range []string{"names", "owner-digests", "last"} {
		if strings.Contains(server.Do(t, "HGETALL", redisstore.DefaultPrefix+"{registry}"+hash), account) {
			left = append(left, hash)
		}
	}
	return left[:min(len(left), 20)]
}

// purgeUntil calls PurgeAccount until nothing is left, or until the store is closed.
func purgeUntil(s *redisstore.Store, account string) error {
	for {
		if more, err := s.PurgeAccount(context.Background(), account); !more || err != nil {
			return err
		}
	}
}

// Two nodes remove an account with 20,000 keys at once. One ends in the middle, and another takes over. Nothing of the account is left, the other account is
// as it was, and the smaller number of accounts is no loss of data.
func TestPurgeOnTwoNodes(t *testing.T) {
	const accounts = 20_000
	server := redistest.Start(t)
	o := redisstore.Options{Addresses: []string{server.Addr()}}
	one, two := openFaulty(t, o), openFaulty(t, o)
	const account = "acct_purged"
	create := func(id string) {
		a := &core.Account{ID: id, Name: id, Meters: []string{"tokens"}, CreatedAt: time.Now()}
		if err := one.CreateAccount(t.Context(), a, &core.OwnerKey{ID: "okey_" + id, AccountID: id, Digest: secrets.DigestOf(id)}); err != nil {
			t.Fatal(err)
		}
	}
	create(account)
	create("other")
	_, keys := storetest.Fill(t, one, account, accounts)
	_, others := storetest.Fill(t, one, "other", 10)
	consume := func(s *redisstore.Store, k *core.Key, id string, holds bool) error {
		c := &core.Consumption{Account: k.AccountID, KeyID: k.ID, KeySeq: k.Seq, UserID: k.UserID, Cost: 1, RequestID: id, Retention: time.Hour,
			Terms: core.Terms{Period: core.Month, Limit: core.Unlimited}, Entry: core.Entry{At: time.Now(), KeyID: k.ID, UserID: k.UserID, Cost: 1}}
		if holds {
			c.Hold = &core.NewHold{ID: core.NewHoldID(k.UserID), ExpiresAt: time.Now().Add(time.Hour)}
		}
		_, err := s.Consume(t.Context(), c)
		return err
	}
	for i, k := range append(keys[:300:300], others...) {
		if err := consume(one, k, fmt.Sprint("id ", i), i%3 == 0); err != nil {
			t.Fatal(err)
		}
	}
	fills := []core.Fill{{Meter: "tokens", Percent: 90, End: core.NoEnd}}
	if err := one.Rank(t.Context(), account, []core.Ranked{{CounterID: core.CounterID{KeyID: keys[0].ID}, Fills: fills}}, false); err != nil {
		t.Fatal(err)
	}
	if _, err := two.UpdateAccess(t.Context(), account, func(ac *core.Access) error { ac.Password = "hash"; return nil }); err != nil {
		t.Fatal(err)
	}
	if err := two.Update(t.Context(), account, func(tx core.Tx) error { return tx.DeleteUser(keys[5].UserID) }); err != nil { // two knows the account
		t.Fatal(err)
	}

	began := time.Now()
	if _, err := one.UpdateAccount(t.Context(), account, func(a *core.Account) error { a.Deleting = true; return nil }); err != nil {
		t.Fatal(err)
	}
	until(t, "node two to refuse a new user", func() bool {
		return two.Update(t.Context(), account, func(tx core.Tx) error { return tx.PutUser(&core.User{AccountID: account, Name: "late"}) }) != nil
	})
	if took := time.Since(began); took > time.Second+slack {
		t.Errorf("node two took %v to refuse writes, want a second at most", took)
	}
	var nodes sync.WaitGroup
	ended := make(chan error, 1)
	nodes.Go(func() { _ = purgeUntil(two, account) })
	nodes.Go(func() { ended <- purgeUntil(one, account) })
	until(t, "a quarter to be removed", func() bool {
		_, n, err := one.Keys(t.Context(), account, core.KeyFilter{}, core.Page{Number: 1, Size: 1})
		return err == nil && n < accounts*3/4
	})
	if err := two.Close(); err != nil {
		t.Fatal(err)
	}
	three := openFaulty(t, o)
	nodes.Go(func() {
		if err := purgeUntil(three, account); err != nil {
			t.Errorf("the node that took over: %v", err)
		}
	})
	for _, k := range others {
		if err := consume(one, k, "", false); err != nil {
			t.Errorf("a request of the other account: %v", err)
		}
	}
	nodes.Wait()
	if err := <-ended; err != nil {
		t.Errorf("the first node: %v", err)
	}
	t.Logf("removed %d keys and users in %v", 2*accounts, time.Since(began).Round(time.Millisecond))
	if left := leftIn(t, server, account); len(left) > 0 {
		t.Errorf("got the keys %q, want none of the account", left)
	}
	if _, n, err := three.Keys(t.Context(), "other", core.KeyFilter{}, core.Page{Number: 1, Size: 1}); err != nil || n != len(others) {
		t.Errorf("the other account: got %d keys, %v, want %d", n, err, len(others))
	}
	for _, k := range others {
		counters, err := three.Counters(t.Context(), []core.CounterID{{Account: "other", KeyID: k.ID}})
		if err != nil || counters[0].Requests[core.Lifetime] != 2 {
			t.Errorf("the other account: got %v, %v, want 2 requests", counters, err)
		}
	}
	create(account + "_2")
	time.Sleep(3 * time.Second) // at least two checks for lost data
	if _, _, err := one.Accounts(t.Context(), core.Page{Number: 1, Size: 1}); err != nil {
		t.Errorf("after the removal: got %v, want no loss", err)
	}
}
