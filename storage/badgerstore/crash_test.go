package badgerstore

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
)

// victimDir says to the process of the test that it is to use a store until it is
// killed.
const victimDir = "BADGERSTORE_TEST_VICTIM"

func TestMain(m *testing.M) {
	if dir := os.Getenv(victimDir); dir != "" {
		if err := victim(dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// What the victim counts and makes.
const (
	victimKeys    = 6
	victimLimit   = 1 << 40
	victimCallers = 12
	victimMany    = 1500 // keys of a user that is deleted again: more than a transaction holds
)

// victim opens a store and uses it from many goroutines. It writes a line before it
// asks for anything, "ask …", and one with the same words when it was answered, "ok …".
// A line that was written is never lost: it is in the pipe.
func victim(dir string) error {
	s, err := Open(dir, Options{Durability: Durability(rand.IntN(2))})
	if err != nil {
		return err
	}
	_ = s.CreateAccount(context.Background(), &core.Account{ID: acct, Name: acct}, &core.OwnerKey{ID: "okey", AccountID: acct})
	if err := s.Update(context.Background(), acct, victims); err != nil {
		return err
	}
	fmt.Println("ok opened")
	var group sync.WaitGroup
	run := func(n int, step func(caller int) error) {
		for i := range n {
			group.Go(func() {
				for {
					if err := step(i); err != nil {
						fmt.Println("failed", err)
						os.Exit(1)
					}
				}
			})
		}
	}
	run(victimCallers, func(caller int) error { return consumeOnce(s, caller) })
	run(3, func(int) error { return createOnce(s) })
	run(1, func(int) error { return deleteOnce(s) })
	group.Wait()
	return nil
}

// victims makes the keys that requests are counted of, and their users.
func victims(tx core.Tx) (err error) {
	for id := int64(1); id <= 2; id++ {
		err = firstOf(err, tx.PutUser(&core.User{AccountID: acct, ID: id, Name: "victim", PlanID: "plan_0"}))
	}
	for n := range victimKeys {
		id := fmt.Sprintf("key_%d", n)
		k := &core.Key{AccountID: acct, ID: id, UserID: int64(n%2 + 1), Status: core.KeyActive, Digest: core.DigestOf(id)}
		if old, missing := tx.Key(id); missing == nil {
			k.Seq = old.Seq
		}
		err = firstOf(err, tx.PutKey(k))
	}
	return err
}

// consumeOnce counts a request with one of the keys, on its own counter or on that of
// its user.
func consumeOnce(s *Store, caller int) error {
	n := rand.IntN(victimKeys)
	key := fmt.Sprintf("key_%d", n)
	c := request(key, int64(n%2+1), victimLimit, time.Now())
	c.Shared = caller%2 == 0
	what := fmt.Sprintf("consume %s %v", key, c.Shared)
	fmt.Println("ask", what)
	v, err := s.Consume(context.Background(), c)
	if err == nil && !v.Allowed {
		err = errors.New("denied")
	}
	fmt.Println("ok", what)
	return err
}

// serial makes names unique within a process.
var serial atomic.Int64

// createOnce makes a user with a key.
func createOnce(s *Store) error {
	name := fmt.Sprintf("u%d-%d", os.Getpid(), serial.Add(1))
	u := &core.User{AccountID: acct, Name: name, Email: new(name + "@example.com"), PlanID: "plan_0"}
	fmt.Println("ask create", name)
	err := s.Update(context.Background(), acct, func(tx core.Tx) error {
		u.ID = 0
		return tx.PutUser(u)
	})
	if err == nil {
		err = s.Update(context.Background(), acct, func(tx core.Tx) error {
			return tx.PutKey(&core.Key{AccountID: acct, ID: "key_" + name, UserID: u.ID, PlanID: "plan_0", Status: core.KeyActive, Digest: core.DigestOf(name)})
		})
	}
	fmt.Println("ok create", name)
	return err
}

// deleteOnce makes a user with many keys and deletes it, after some that stay: it keeps
// the others from the account for long.
func deleteOnce(s *Store) (err error) {
	const user = 1 << 40
	for range 20 {
		err = firstOf(err, createOnce(s))
	}
	if err != nil {
		return err
	}
	err = s.Update(context.Background(), acct, withKeys(user, victimMany))
	if err == nil {
		fmt.Println("ok delete", serial.Add(1))
		err = s.Update(context.Background(), acct, func(tx core.Tx) error { return tx.DeleteUser(user) })
	}
	return err
}

// TestKill: what was answered is there after the process was killed, at whatever
// moment: no answered request is missing from its counter and none that was not asked
// for is in it, the history agrees with the counters, and lists with what is in them.
func TestKill(t *testing.T) {
	const rounds = 12
	dir := t.TempDir()
	asked, answered := map[string]int64{}, map[string]int64{}
	for round := range rounds {
		lines := 0
		if round > 0 { // the first time it is killed while it opens the store
			lines = rand.IntN(6000)
		}
		killAfter(t, dir, lines, asked, answered)
		s := mustOpen(t, dir, Options{})
		checkCounters(t, s, asked, answered)
		checkLists(t, s, answered)
		if err := s.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
		if t.Failed() {
			t.Fatalf("round %d: killed after %d lines", round, lines)
		}
	}
	var requests int64
	for what, n := range answered {
		if strings.HasPrefix(what, "consume") {
			requests += n
		}
	}
	t.Logf("%d kills, %d answered requests, %d answered creations", rounds, requests, answered["create"])
	if requests == 0 || answered["create"] == 0 {
		t.Error("answered: got nothing, the victims did not work")
	}
}

// killAfter runs a victim, kills it after some lines and adds up what it asked for and
// what it was answered.
func killAfter(t *testing.T, dir string, lines int, asked, answered map[string]int64) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), victimDir+"="+dir)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	all := bufio.NewReader(out)
	for n := 0; ; n++ {
		if n == lines {
			_ = cmd.Process.Kill()
		}
		line, err := all.ReadString('\n')
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatalf("read from the victim: %v", err)
		}
		note(t, strings.TrimSpace(line), asked, answered)
	}
	if err := cmd.Wait(); err == nil || cmd.ProcessState.ExitCode() != -1 {
		t.Fatalf("victim: got %v, want it killed", err)
	}
}

// note adds a line of a victim to what was asked and answered.
func note(t *testing.T, line string, asked, answered map[string]int64) {
	word, what, _ := strings.Cut(line, " ")
	counts := map[string]map[string]int64{"ask": asked, "ok": answered}[word]
	if counts == nil {
		t.Fatalf("victim: %q", line)
	}
	counts[what]++
	if name, ok := strings.CutPrefix(what, "create "); ok {
		counts["create"]++
		counts["name "+name]++
	}
}

// checkCounters holds counters and histories against what was asked and answered.
func checkCounters(t *testing.T, s *Store, asked, answered map[string]int64) {
	t.Helper()
	var least, most, historic [3]int64 // by user
	for n := range victimKeys {
		key, user := fmt.Sprintf("key_%d", n), n%2+1
		own, shared := fmt.Sprintf("consume %s false", key), fmt.Sprintf("consume %s true", key)
		used := counterOf(t, s, ofKey(key)).Tallies[core.Year].Used
		if used < answered[own]+answered[shared] || used > asked[own]+asked[shared] {
			t.Errorf("%s: got %d used, want between %d and %d", key, used, answered[own]+answered[shared], asked[own]+asked[shared])
		}
		if got := allowedIn(t, s, ofKey(key)); got != used {
			t.Errorf("history of %s: got %d entries, want the %d that are counted", key, got, used)
		}
		least[user], most[user], historic[user] = least[user]+answered[shared], most[user]+asked[shared], historic[user]+used
	}
	for user := 1; user <= 2; user++ {
		used := counterOf(t, s, ofUser(int64(user))).Tallies[core.Year].Used
		if used < least[user] || used > most[user] {
			t.Errorf("user %d: got %d used, want between %d and %d", user, used, least[user], most[user])
		}
		if got := allowedIn(t, s, ofUser(int64(user))); got != historic[user] {
			t.Errorf("history of user %d: got %d entries, want the %d of its keys", user, got, historic[user])
		}
	}
}

// checkLists fails unless everything that was made is there, and lists, totals and
// what leads to a key agree.
func checkLists(t *testing.T, s *Store, answered map[string]int64) {
	t.Helper()
	page := core.Page{Number: 1, Size: 1 << 20}
	users, total, err := s.Users(t.Context(), acct, core.UserFilter{}, page)
	if err != nil || total != len(users) {
		t.Fatalf("Users: got %d of %d, %v", len(users), total, err)
	}
	keys, total, err := s.Keys(t.Context(), acct, core.KeyFilter{}, page)
	if err != nil || total != len(keys) {
		t.Fatalf("Keys: got %d of %d, %v", len(keys), total, err)
	}
	byUser := map[int64]int{}
	for _, k := range keys {
		byUser[k.UserID]++
		if got, err := s.KeyByDigest(t.Context(), k.Digest); err != nil || got.ID != k.ID {
			t.Errorf("KeyByDigest of %s: got %v, %v", k.ID, got, err)
		}
	}
	names := map[string]bool{}
	for _, u := range users {
		names[u.Name] = true
		want := byUser[u.ID]
		if u.ID == 1<<40 {
			want = victimMany
		}
		if _, n, err := s.Keys(t.Context(), acct, core.KeyFilter{UserID: u.ID}, page); err != nil || n != byUser[u.ID] || n != want {
			t.Errorf("keys of user %d: got %d, %v, want %d", u.ID, n, err, want)
		}
		delete(byUser, u.ID)
	}
	if len(byUser) > 0 {
		t.Errorf("keys of users who are not there: %v", byUser)
	}
	for what := range answered {
		if name, ok := strings.CutPrefix(what, "name "); ok && !names[name] {
			t.Errorf("user %s was answered and is not there", name)
		}
	}
	if _, n, err := s.Users(t.Context(), acct, core.UserFilter{PlanID: "plan_0"}, page); err != nil || n < len(users)-1 {
		t.Errorf("users with the plan: got %d, %v, want %d", n, err, len(users))
	}
}
