package badgerstore

import (
	"fmt"
	"testing"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/secrets"
)

// TestReusedNumberPageAhead: an import creates a user again under the number of a deleted user. A kill leaves the pages
// of the new counters, but not the mark, so the replay of the deletion meets a newer page. The new user keeps
// its usage. A failure means that requests are forgotten.
func TestReusedNumberPageAhead(t *testing.T) {
	for _, imported := range []bool{false, true} {
		for _, events := range []int{3, 2 * maxPendingEvents} {
			t.Run(fmt.Sprintf("imported %v, %d events", imported, events), func(t *testing.T) {
				dir := t.TempDir()
				var h hook
				s := openAlone(t, dir, Options{Logger: quiet.Logger, failpoint: h.step})
				known(t, s, "key")
				addUserAndKey(t, s, 9, "again")
				for range events {
					consume(t, s, shared(request("again", 9, endless, noon)))
				}
				flushCheckpoint(t, s)
				seq := keyRef(t, s, "again").number
				update(t, s, func(tx core.Tx) error { return tx.DeleteUser(9) })
				update(t, s, func(tx core.Tx) error {
					return firstOf(tx.PutUser(&core.User{AccountID: acct, ID: 9, Name: "again"}),
						tx.PutKey(&core.Key{AccountID: acct, ID: "again", Seq: seq, UserID: 9, Status: core.KeyActive, Digest: secrets.DigestOf("again")}))
				})
				want := int64(events)
				if imported {
					var c core.Counter
					c.Add(charge(7, noon))
					if err := s.SetCounters(t.Context(), []core.CounterID{ofKey("again"), ofUser(9)}, []core.Counter{c, c}); err != nil {
						t.Fatal(err)
					}
					want += 7
				}
				for range events {
					consume(t, s, shared(request("again", 9, endless, noon)))
				}
				h.once(failPagesWritten, func() { // the pages are committed, the mark is not
					after := t.TempDir()
					copyKilled(t, after, dir)
					dir = after
				})
				writeCheckpoint(t, s)
				abandon(t, s)
				for range 2 {
					s = openAlone(t, dir, quiet)
					for _, of := range []core.CounterID{ofKey("again"), ofUser(9)} {
						if got := counterOf(t, s, of).Requests[core.Month]; got != want {
							t.Errorf("%+v: got %d used, want %d", of, got, want)
						}
						if got := allowedIn(t, s, of); got != int64(events) {
							t.Errorf("%+v: got %d entries, want %d", of, got, events)
						}
					}
					writeCheckpoint(t, s)
					abandon(t, s)
				}
			})
		}
	}
}
