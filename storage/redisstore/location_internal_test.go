package redisstore

import (
	"slices"
	"testing"

	"github.com/limitkeeper/limitkeeper/core"
)

// While keys move, readLocated repeats a read only for keys whose location has changed, and never for
// unused keys.
func TestReadsDuringMoves(t *testing.T) {
	t.Parallel()
	m := newMoveTest(t)
	m.count(1, 0, 7, 100)
	m.update(func(tx core.Tx) error {
		return tx.PutKey(&core.Key{AccountID: moveAccount, ID: "key_unused", UserID: 1, Status: core.KeyActive, Digest: core.DigestOf("unused")})
	})
	ids := []core.CounterID{{Account: moveAccount, KeyID: "key_unused"}, {Account: moveAccount, KeyID: "key_1"}, {Account: moveAccount, UserID: 1}}
	for _, c := range []struct {
		name  string
		moves func(reading int, before bool) // moves the key to user 2 or back
		want  []int                          // number of keys in each read
	}{
		{"after each reading", func(reading int, before bool) {
			if !before {
				m.moveTo(int64(2 - reading%2))
			}
		}, []int{3}},
		{"before the first reading", func(reading int, before bool) {
			if before && reading == 0 {
				m.moveTo(2)
			}
		}, []int{3, 1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			m.moveTo(1)
			var sizes []int
			list, err := readLocated(t.Context(), m.s, ids, func(locations []location) ([]core.Counter, []int, error) {
				c.moves(len(sizes), true)
				list, missing, err := m.s.counters(t.Context(), locations)
				c.moves(len(sizes), false)
				sizes = append(sizes, len(locations))
				return list, missing, err
			})
			if err != nil {
				t.Fatal(err)
			}
			for i, want := range []int64{0, 7, 7} {
				if got := list[i].Requests[core.Year]; got != want {
					t.Errorf("%+v: got %d used, want %d", ids[i], got, want)
				}
			}
			if !slices.Equal(sizes, c.want) {
				t.Errorf("sizes of the reads: got %v, want %v", sizes, c.want)
			}
		})
	}
}
