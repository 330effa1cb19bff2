package redisstore_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/redisstore"
	"github.com/limitkeeper/limitkeeper/storage/redisstore/redistest"
	"github.com/limitkeeper/limitkeeper/storage/storetest"
)

// Request ids always come to an end, also when the clock of a node was ahead once: else a
// key that is used with ids would fill the memory of Redis.
func TestRequestIDsEnd(t *testing.T) {
	server := redistest.Start(t)
	s := open(t, redisstore.Options{Addresses: []string{server.Addr()}, Prefix: "ids:"})
	defer s.Close()
	if err := s.CreateAccount(t.Context(), &core.Account{ID: "acct_ids", Name: "ids"}, &core.OwnerKey{ID: "okey_1", AccountID: "acct_ids"}); err != nil {
		t.Fatal(err)
	}
	_, keys := storetest.Fill(t, s, "acct_ids", 1)
	request := func(id string, ahead time.Duration) {
		t.Helper()
		c := counted(keys[0], 1)
		c.RequestID, c.Entry.At = id, c.Entry.At.Add(ahead)
		if v, err := s.Consume(t.Context(), c); err != nil || !v.Allowed || v.First != nil {
			t.Fatalf("%s: got %+v, %v, want it counted", id, v, err)
		}
	}
	ids := fmt.Sprintf("ids:{acct_ids/%d}i:%d", keys[0].UserID, keys[0].Seq)
	ends := func(when string) {
		t.Helper()
		for _, key := range []string{ids, strings.Replace(ids, "}i:", "}j:", 1)} {
			if ttl := server.Do(t, "TTL", key); ttl == "-1" {
				t.Errorf("%s: %s has no end", when, key)
			}
		}
	}
	request("now", 0)
	ends("the first id")
	request("ahead", 30*24*time.Hour)
	ends("an id of a clock that is ahead")
	for day := range 4 { // the hash has ended by then
		server.Do(t, "DEL", ids)
		request(fmt.Sprint("back", day), time.Duration(day)*24*time.Hour)
		ends(fmt.Sprintf("day %d after the clock was ahead", day))
	}
}
