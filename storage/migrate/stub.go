package migrate

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"sync"

	"github.com/limitkeeper/limitkeeper/core"
)

// Stubs stand on the target for what was deleted in the source, while what it has left in
// the histories of others is appended. One can tell them from everything else: a run that was
// cut off may leave some, and the next one removes them.

// stubName is what users, plans and keys are called that are stubs.
const stubName = "deleted, stands here while its history is taken over"

// stubMetadata marks them too.
var stubMetadata = json.RawMessage(`{"limitkeeper":"stub"}`)

func isStubUser(u *core.User) bool {
	return u.Name == stubName && string(u.Metadata) == string(stubMetadata)
}

func isStubKey(k *core.Key) bool {
	return k.Name == stubName && string(k.Metadata) == string(stubMetadata)
}

func isStubPlan(p *core.Plan) bool { return p.Name == stubName && p.Inactive }

func stubUser(account string, id int64) *core.User {
	return &core.User{AccountID: account, ID: id, Name: stubName, Metadata: stubMetadata, Disabled: true}
}

func stubPlan(account string, seq int64) *core.Plan {
	return &core.Plan{AccountID: account, ID: stubID("plan_", seq), Seq: seq, Name: stubName, Inactive: true, Limit: 1}
}

func stubKey(account, id string, seq, user int64) *core.Key {
	return &core.Key{AccountID: account, ID: id, Seq: seq, Name: stubName, UserID: user, Status: core.KeyInactive,
		Digest: core.DigestOf("stub " + account + " " + id), Metadata: stubMetadata}
}

func stubID(prefix string, seq int64) string { return prefix + "stub" + strconv.FormatInt(seq, 10) }

// stubs are those of an account.
type stubs struct {
	users []int64
	plans []string
	keys  []string
}

// removeStubs deletes the stubs that an earlier run has left in an account. A key that stood
// with one of them for a while goes with it, and is put again afterwards.
func (m *migration) removeStubs(ctx context.Context, account string) error {
	left := m.stubs[account]
	if left == nil {
		return nil
	}
	return m.deleteStubs(ctx, account, left)
}

// deleteStubs deletes stubs.
func (m *migration) deleteStubs(ctx context.Context, account string, s *stubs) error {
	for some := range slices.Chunk(s.keys, m.o.page) {
		err := m.update(ctx, account, func(tx core.Tx) error {
			for _, id := range some {
				if err := tx.DeleteKey(id); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return fmt.Errorf("the stubs of key %s and others: %w", some[0], err)
		}
	}
	for _, id := range s.plans {
		if err := m.update(ctx, account, func(tx core.Tx) error { return tx.DeletePlan(id) }); err != nil {
			return fmt.Errorf("the stub of plan %s: %w", id, err)
		}
	}
	for _, id := range s.users {
		if err := m.update(ctx, account, func(tx core.Tx) error { return tx.DeleteUser(id) }); err != nil {
			return fmt.Errorf("the stub of user %d: %w", id, err)
		}
	}
	*s = stubs{}
	return nil
}

// gaps are the Seqs that the source's keys have left free: those of deleted keys are among
// them. They are given to the stubs of these, so that no number is given that never was.
type gaps struct {
	mu   sync.Mutex // guards what follows
	keys *reading[*core.Key]
	next int64 // that may be free
	upTo int64 // the next one that is not, or 0 before the first key was read
	last int64 // the largest that was ever given
}

func newGaps(ctx context.Context, m *migration, account string, last int64) *gaps {
	return &gaps{keys: newReading(m.o.page, keysOf(ctx, m.from, account)), next: 1, last: last}
}

// take returns a Seq that no other has, or 0, for a new one, if there is none left.
func (g *gaps) take() (int64, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for g.next >= g.upTo {
		if g.upTo > 0 {
			g.next = g.upTo + 1
		}
		k, ok, err := g.keys.next()
		switch {
		case err != nil:
			return 0, err
		case ok:
			g.upTo = k.Seq
		case g.next > g.last:
			return 0, nil
		default:
			g.upTo = g.last + 1
		}
	}
	g.next++
	return g.next - 1, nil
}
