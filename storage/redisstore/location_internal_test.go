package redisstore

import (
	"maps"
	"testing"

	"github.com/redis/rueidis"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/secrets"
)

// While keys move, readLocated repeats a read only for keys whose location has changed, and never for
// unused keys.
func TestReadsDuringMoves(t *testing.T) {
	t.Parallel()
	m := newMoveTest(t)
	m.count(1, 0, 7, 100)
	m.update(func(tx core.Tx) error {
		return tx.PutKey(&core.Key{AccountID: moveAccount, ID: "key_unused", UserID: 1, Status: core.KeyActive, Digest: secrets.DigestOf("unused")})
	})
	ids := []core.CounterID{{Account: moveAccount, KeyID: "key_unused"}, {Account: moveAccount, KeyID: "key_1"}, {Account: moveAccount, UserID: 1}}
	for _, c := range []struct {
		name  string
		moves func(reading int, before bool) // moves the key to user 2 or back
		want  map[string]int                 // number of reads by field
	}{
		{"after each reading", func(reading int, before bool) {
			if !before {
				m.moveTo(int64(2 - reading%2))
			}
		}, map[string]int{userField: 1, "1": 1, "2": 1}},
		{"before the first reading", func(reading int, before bool) {
			if before && reading == 0 {
				m.moveTo(2)
			}
		}, map[string]int{userField: 1, "1": 2, "2": 1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			m.moveTo(1)
			reads := map[string]int{}
			command := func(at location, loaded bool) rueidis.Completed {
				if at.field == "1" {
					c.moves(reads[at.field], true)
				}
				return m.s.readCounter(at, loaded)
			}
			decode := func(at location, r rueidis.RedisResult) (core.Counter, bool, error) {
				if at.field == "1" {
					c.moves(reads[at.field], false)
				}
				reads[at.field]++
				return decodeCounterReply(at, r)
			}
			list, err := readLocated(t.Context(), m.s, ids, reading[core.Counter]{command, decode})
			if err != nil {
				t.Fatal(err)
			}
			for i, want := range []int64{0, 7, 7} {
				if got := list[i].Requests[core.Year]; got != want {
					t.Errorf("%+v: got %d used, want %d", ids[i], got, want)
				}
			}
			if !maps.Equal(reads, c.want) {
				t.Errorf("reads: got %v, want %v", reads, c.want)
			}
		})
	}
}
