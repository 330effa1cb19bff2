package redisstore

import (
	"slices"
	"testing"

	"github.com/limitkeeper/limitkeeper/core"
)

// What is read of many is read again of those alone that were away and are elsewhere by now,
// however often others move and whoever was never used.
func TestReadingWhatMoves(t *testing.T) {
	t.Parallel()
	m := newMoving(t)
	m.spend(1, 0, 7, 100)
	m.update(func(tx core.Tx) error {
		return tx.PutKey(&core.Key{AccountID: movingAccount, ID: "key_unused", UserID: 1, Status: core.KeyActive, Digest: core.DigestOf("unused")})
	})
	ids := []core.CounterID{{Account: movingAccount, KeyID: "key_unused"}, {Account: movingAccount, KeyID: "key_1"}, {Account: movingAccount, UserID: 1}}
	for _, c := range []struct {
		name  string
		moves func(reading int, before bool) // the key to user 2 or back
		want  []int                          // of how many it is read, each time
	}{
		{"after each reading", func(reading int, before bool) {
			if !before {
				m.to(int64(2 - reading%2))
			}
		}, []int{3}},
		{"before the first reading", func(reading int, before bool) {
			if before && reading == 0 {
				m.to(2)
			}
		}, []int{3, 1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			m.to(1)
			var sizes []int
			list, err := atPlaces(t.Context(), m.s, ids, func(places []place) ([]core.Counter, []int, error) {
				c.moves(len(sizes), true)
				list, missing, err := m.s.counters(t.Context(), places)
				c.moves(len(sizes), false)
				sizes = append(sizes, len(places))
				return list, missing, err
			})
			if err != nil {
				t.Fatal(err)
			}
			for i, want := range []int64{0, 7, 7} {
				if got := list[i].Windows[core.Year].Used; got != want {
					t.Errorf("%+v: got %d used, want %d", ids[i], got, want)
				}
			}
			if !slices.Equal(sizes, c.want) {
				t.Errorf("readings: got of %v, want of %v", sizes, c.want)
			}
		})
	}
}
