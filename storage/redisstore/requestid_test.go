package redisstore_test

import (
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/redisstore"
	"github.com/limitkeeper/limitkeeper/storage/redisstore/redistest"
	"github.com/limitkeeper/limitkeeper/storage/storetest"
)

// dayLater sets the start of a key's request ids back by 25 hours.
func dayLater(t testing.TB, server *redistest.Server, prefix string, k *core.Key) {
	t.Helper()
	began := server.Do(t, "EVAL", `local c = redis.call('HGET', KEYS[1], ARGV[1])
		local began = struct.unpack('>I4', c, 19)
		redis.call('HSET', KEYS[1], ARGV[1], string.sub(c, 1, 18) .. struct.pack('>I4', began - 90000) .. string.sub(c, 23))
		return began`, "1", fmt.Sprintf("%s{%s/%d}c", prefix, k.AccountID, k.UserID), fmt.Sprint(k.Seq))
	if n, err := strconv.ParseInt(began, 10, 64); err != nil || time.Since(time.Unix(n, 0)).Abs() > time.Minute {
		t.Fatalf("the request ids began at %q, want a moment ago", began)
	}
}

// Request ids are kept for a day, whatever the clocks of the nodes show, and expire later. A failure makes
// repeats count twice, or fills the memory of Redis.
func TestRequestIDsEnd(t *testing.T) {
	server := redistest.Start(t)
	s := open(t, redisstore.Options{Addresses: []string{server.Addr()}, Prefix: "ids:"})
	defer s.Close()
	if err := s.CreateAccount(t.Context(), &core.Account{ID: "acct_ids", Name: "ids"}, &core.OwnerKey{ID: "okey_1", AccountID: "acct_ids"}); err != nil {
		t.Fatal(err)
	}
	_, keys := storetest.Fill(t, s, "acct_ids", 1)
	request := func(id string, ahead time.Duration, repeated bool) {
		t.Helper()
		c := counted(keys[0], 1)
		c.RequestID, c.Entry.At = id, c.Entry.At.Add(ahead)
		if v, err := s.Consume(t.Context(), c); err != nil || !v.Allowed || v.FirstTerms != nil != repeated {
			t.Fatalf("%s: got %+v, %v; want it allowed, repeated %v", id, v, err, repeated)
		}
		for _, of := range []string{"i", "j"} {
			if ttl := server.Do(t, "TTL", fmt.Sprintf("ids:{acct_ids/%d}%s:%d", keys[0].UserID, of, keys[0].Seq)); ttl == "-1" {
				t.Errorf("%s: a hash of request ids has no end", id)
			}
		}
	}
	request("first", 0, false)
	for i := range 3 { // wrong clocks expire no ids
		request(fmt.Sprint("ahead", i), 40*24*time.Hour, false)
		request(fmt.Sprint("back", i), time.Minute, false)
		request("first", 2*time.Minute, true)
	}
	dayLater(t, server, "ids:", keys[0])
	request("second", 0, false)
	request("first", 0, true)
	dayLater(t, server, "ids:", keys[0])
	request("third", 0, false)
	request("second", 0, true)
	request("first", 0, false)
}
