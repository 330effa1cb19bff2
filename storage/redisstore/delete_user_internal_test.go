package redisstore

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/secrets"
)

// Deleting a user with many keys removes all its keys, digests, counters and index
// entries, even if the process dies in between. A key that moves to another user in the same transaction
// stays.
func TestDeletesUserWithManyKeys(t *testing.T) {
	const keys = 1007
	digest := func(i int) secrets.Digest { return secrets.DigestOf(fmt.Sprint("many ", i)) }
	for _, dies := range []bool{false, true} {
		t.Run(fmt.Sprintf("dies %v", dies), func(t *testing.T) {
			m := newMoveTest(t)
			before := m.names(t)
			must := func(err error) {
				t.Helper()
				if err != nil {
					t.Fatal(err)
				}
			}
			user := core.User{AccountID: moveAccount, Name: "many", Email: new("many@example.com"), PlanID: "plan_own"}
			other := core.User{AccountID: moveAccount, Name: "other", PlanID: "plan_1"}
			must(m.s.Update(t.Context(), moveAccount, func(tx core.Tx) error {
				user.ID, other.ID = 0, 0
				return errors.Join(tx.PutPlan(&core.Plan{AccountID: moveAccount, ID: "plan_0"}), tx.PutPlan(&core.Plan{AccountID: moveAccount, ID: "plan_1"}),
					tx.PutUser(&user), tx.PutUser(&other))
			}))
			for first := 0; first < keys; first += 300 {
				must(m.s.Update(t.Context(), moveAccount, func(tx core.Tx) error {
					for i := first; i < min(first+300, keys); i++ {
						k := &core.Key{AccountID: moveAccount, ID: fmt.Sprint("many_", i), UserID: user.ID, PlanID: fmt.Sprint("plan_", i%2), Digest: digest(i)}
						if err := tx.PutKey(k); err != nil {
							return err
						}
					}
					return nil
				}))
			}
			used, err := m.s.Key(t.Context(), moveAccount, "many_1")
			must(err)
			for i := range 4 { // allowed and denied requests on several days
				_, err = m.s.Consume(t.Context(), &core.Consumption{Account: moveAccount, KeyID: used.ID, KeySeq: used.Seq, UserID: user.ID, Shared: true, Cost: 1,
					Terms: core.Terms{Period: core.Day, Limit: int64(i % 2)}, Retention: core.DefaultRetention, RequestID: fmt.Sprint(i),
					Entry: core.Entry{At: time.Now().AddDate(0, 0, i/2-1), Cost: 1}})
				must(err)
			}
			if n := m.server.Do(t, "STRLEN", m.s.o.usage(moveAccount, user.ID).pastDays(userField)); n == "0" {
				t.Error("there are no past days")
			}

			remove := func(tx core.Tx) error {
				k, err := tx.Key("many_0")
				if err != nil {
					return err
				}
				k.UserID = 1
				return errors.Join(tx.PutKey(k), tx.DeleteUser(user.ID))
			}
			if dies {
				must(m.leaveTasks(remove))
				if _, n, err := m.s.Users(t.Context(), moveAccount, core.UserFilter{Email: "many@example.com"}, core.Page{Number: 1, Size: 1}); n != 0 || err != nil {
					t.Errorf("users with the email of the deleted user: %d, %v", n, err)
				}
				us, n, err := m.s.Users(t.Context(), moveAccount, core.UserFilter{OnPlan: "plan_1"}, core.Page{Number: 1, Size: 10})
				if err != nil || n != 1 || len(us) != 1 || us[0].ID != other.ID {
					t.Errorf("users on the plan: %v of %d, %v; want the other one", us, n, err)
				}
				must(m.s.Update(t.Context(), moveAccount, func(tx core.Tx) error { // the next transaction finishes the deletion
					return tx.PutUser(&core.User{AccountID: moveAccount, ID: user.ID, Name: "again", Email: new("many@example.com")})
				}))
				must(m.s.Update(t.Context(), moveAccount, func(tx core.Tx) error { return tx.DeleteUser(user.ID) }))
			} else {
				must(m.s.Update(t.Context(), moveAccount, remove))
			}

			if k, err := m.s.KeyByDigest(t.Context(), digest(0)); err != nil || k.UserID != 1 {
				t.Errorf("the moved key: %v, %v", k, err)
			}
			for _, i := range []int{1, 500, keys - 1} {
				if _, err := m.s.KeyByDigest(t.Context(), digest(i)); !errors.Is(err, core.ErrKeyNotFound) {
					t.Errorf("key %d: %v, want ErrKeyNotFound", i, err)
				}
			}
			must(m.s.Update(t.Context(), moveAccount, func(tx core.Tx) error {
				return errors.Join(tx.DeleteKey("many_0"), tx.DeleteUser(other.ID), tx.DeletePlan("plan_0"), tx.DeletePlan("plan_1"))
			}))
			left := slices.DeleteFunc(m.names(t), func(name string) bool {
				return strings.Contains(name, "}x") || strings.HasSuffix(name, "}deleted") || slices.Contains(before, name) // tombstones expire
			})
			if len(left) > 0 {
				t.Errorf("left: %q", left[:min(len(left), 20)])
			}
		})
	}
}

// A pending move that fails because memory is full does not block deletions.
func TestMoveWhileMemoryIsFull(t *testing.T) {
	for _, used := range []bool{true, false} {
		m := newMoveTest(t)
		if used {
			m.mustConsume(1)
		}
		m.update(func(tx core.Tx) error {
			return tx.PutKey(&core.Key{AccountID: moveAccount, ID: "key_2", UserID: 1, Digest: secrets.DigestOf("2")})
		})
		m.beginMoveTo(2)
		set := func(memory string) {
			if err := m.s.client.Do(t.Context(), m.s.client.B().ConfigSet().ParameterValue().ParameterValue("maxmemory", memory).Build()).Error(); err != nil {
				t.Fatal(err)
			}
		}
		set("1")
		m.update(func(tx core.Tx) error { return tx.DeleteKey("key_2") })
		set("0")
		want := int64(0)
		if used {
			want = 1
		}
		m.check(want)
	}
}

// names returns the names of all keys on the server.
func (m *moveTest) names(t testing.TB) []string {
	t.Helper()
	all, err := m.s.client.Do(t.Context(), m.s.client.B().Keys().Pattern("*").Build()).AsStrSlice()
	if err != nil {
		t.Fatal(err)
	}
	return all
}
