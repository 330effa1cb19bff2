package redisstore_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/service"
	"github.com/limitkeeper/limitkeeper/storage/redisstore"
	"github.com/limitkeeper/limitkeeper/storage/redisstore/redistest"
)

// largestRequest returns the largest request that a customer can send: long path, method and address, and
// a request id.
func largestRequest(secret string, i int) service.Request {
	return service.Request{
		Secret: secret, Endpoint: "/" + strings.Repeat("x", 2039), Method: strings.Repeat("M", core.MaxEntryMethod),
		IP: strings.Repeat("1", 128), Cost: 1, RequestID: fmt.Sprintf("%0*d", core.MaxRequestIDLength, i),
	}
}

// customer is a key of a user, on its own server.
type customer struct {
	*service.Service
	store           *redisstore.Store
	server          *redistest.Server
	account, secret string
	user            int64
	key             *core.Key
}

func newCustomer(t *testing.T) *customer {
	t.Helper()
	c := &customer{server: redistest.Start(t)}
	c.store = openFaulty(t, redisstore.Options{Addresses: []string{c.server.Addr()}, Prefix: "w:"})
	c.Service = service.New(c.store, service.Config{})
	ctx := t.Context()
	a, _, _, err := c.CreateAccount(ctx, "account")
	if err != nil {
		t.Fatal(err)
	}
	c.account = a.ID
	plan, err := c.CreatePlan(ctx, a.ID, core.PlanPatch{Name: ref("Starter"), Limit: core.Some(int64(core.MaxLimit)), Period: ref("month")})
	if err != nil {
		t.Fatal(err)
	}
	u, err := c.CreateUser(ctx, a.ID, core.UserPatch{Name: ref("user"), PlanID: core.Some(plan.ID)})
	if err != nil {
		t.Fatal(err)
	}
	c.user = u.ID
	if c.key, c.secret, err = c.CreateKey(ctx, a.ID, core.KeyPatch{Name: ref("key"), UserID: &u.ID}); err != nil {
		t.Fatal(err)
	}
	return c
}

// name returns the full name of a Redis key in the user's slot.
func (c *customer) name(of string) string { return fmt.Sprintf("w:{%s/%d}%s", c.account, c.user, of) }

// memory returns the bytes of a Redis key.
func (c *customer) memory(t *testing.T, of string) int64 {
	t.Helper()
	n, err := strconv.ParseInt(c.server.Do(t, "MEMORY", "USAGE", c.name(of), "SAMPLES", "0"), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// send sends the largest requests numbered from to to.
func (c *customer) send(t *testing.T, from, to int) {
	t.Helper()
	for i := from; i < to; i++ {
		if d, err := c.Validate(t.Context(), c.account, largestRequest(c.secret, i)); err != nil || !d.Allowed() {
			t.Fatalf("Validate: got %v, %v, want allowed", d.Outcome, err)
		}
	}
}

// maxHistoryBytes is the bound on a history of 10,000 entries: 200 bytes for each, and a fifth for the
// overhead of Redis.
const maxHistoryBytes = 200 * redisstore.DefaultHistory * 6 / 5

// One customer cannot fill the memory of Redis. 10,000 of the largest requests take 6 MB, of which each
// history takes 2 MB. A failure breaks the promise that a customer cannot exhaust the memory of the
// others.
func TestWorstRequests(t *testing.T) {
	const requests, most = 10_000, 6 << 20
	c := newCustomer(t)
	before := usedMemory(t, c.server)
	c.send(t, 0, requests)
	took := usedMemory(t, c.server) - before
	t.Logf("%d requests: %d bytes; history of the user %d, of the key %d, request ids %d",
		requests, took, c.memory(t, "h:u"), c.memory(t, "h:1"), c.memory(t, "i:1"))
	if took > most {
		t.Errorf("%d requests took %d bytes, want %d at most", requests, took, most)
	}
	for _, history := range []string{"h:u", "h:1"} {
		if n := c.memory(t, history); n > maxHistoryBytes {
			t.Errorf("history %s: got %d bytes, want %d at most", history, n, maxHistoryBytes)
		}
	}
	if cut, err := c.store.HistoryCut(t.Context(), core.CounterID{Account: c.account, KeyID: c.key.ID}); !cut || err != nil {
		t.Errorf("HistoryCut: got %v, %v, want true: the history has fewer entries than it may", cut, err)
	}
}

// A history without a stored size, such as one that moved with its key, is cut to its bound at the next entry.
func TestHistoryOfUnknownSize(t *testing.T) {
	c := newCustomer(t)
	entry := core.Entry{At: time.Now(), KeyID: c.key.ID, UserID: c.user, Endpoint: "/" + strings.Repeat("x", 2000), Method: "GET"}
	for _, of := range []core.CounterID{{Account: c.account, KeyID: c.key.ID}, {Account: c.account, UserID: c.user}} {
		if err := c.store.AppendHistory(t.Context(), of, []core.Entry{entry}, core.DefaultRetention); err != nil {
			t.Fatal(err)
		}
	}
	c.server.Do(t, "EVAL", `redis.call('HDEL', KEYS[1], 'bu', 'b1')
		for i = 2, 3 do
			local entry = redis.call('LINDEX', KEYS[i], 0)
			for _ = 1, 9000 do redis.call('RPUSH', KEYS[i], entry) end
		end`, "3", c.name("c"), c.name("h:u"), c.name("h:1"))
	c.send(t, 0, 64)
	for _, history := range []string{"h:u", "h:1"} {
		if n := c.memory(t, history); n > maxHistoryBytes {
			t.Errorf("history %s: got %d bytes, want %d at most", history, n, maxHistoryBytes)
		}
	}
}
