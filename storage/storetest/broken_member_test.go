package storetest

import (
	"slices"
	"testing"

	"github.com/limitkeeper/limitkeeper/core"
)

// brokenMembers are stores of which each loses one member: one for every member of core that depends on no other resource. So a member that
// the machine does not draw fails the tests.
var brokenMembers = slices.Concat(
	losing("user", &core.UserMembers, func(tx core.Tx, lose func(*core.User)) core.Tx { return losesTx{Tx: tx, user: lose} }),
	losing("plan", &core.PlanMembers, func(tx core.Tx, lose func(*core.Plan)) core.Tx { return losesTx{Tx: tx, plan: lose} }),
	losing("key", &core.KeyMembers, func(tx core.Tx, lose func(*core.Key)) core.Tx { return losesTx{Tx: tx, key: lose} }))

// losing returns a defect for each independent member. The store keeps the value that the member has in a zero resource.
func losing[R, P any](kind string, ms *core.Members[R, P], wrap func(core.Tx, func(*R)) core.Tx) (list []defect) {
	for i := range ms.List {
		member := &ms.List[i]
		if !member.Independent() {
			continue
		}
		lose := func(r *R) {
			var p P
			member.Set(&p, member.Get(new(R)))
			_ = ms.Apply(&p, r) // sets the member; a rule may refuse the value
		}
		list = append(list, defect{name: "loses the " + member.Name + " of a " + kind, caughtBy: "machine",
			open: inTx(func(core.Store, string) func(core.Tx) core.Tx {
				return func(tx core.Tx) core.Tx { return wrap(tx, lose) }
			})})
	}
	return list
}

// losesTx changes resources of one kind before it stores them.
type losesTx struct {
	core.Tx
	user func(*core.User)
	plan func(*core.Plan)
	key  func(*core.Key)
}

func (tx losesTx) PutUser(u *core.User) error {
	if tx.user == nil {
		return tx.Tx.PutUser(u)
	}
	lost := *u
	tx.user(&lost)
	err := tx.Tx.PutUser(&lost)
	u.ID = lost.ID
	return err
}

func (tx losesTx) PutPlan(p *core.Plan) error {
	if tx.plan == nil {
		return tx.Tx.PutPlan(p)
	}
	lost := *p
	tx.plan(&lost)
	err := tx.Tx.PutPlan(&lost)
	p.Seq = lost.Seq
	return err
}

func (tx losesTx) PutKey(k *core.Key) error {
	if tx.key == nil {
		return tx.Tx.PutKey(k)
	}
	lost := *k
	tx.key(&lost)
	err := tx.Tx.PutKey(&lost)
	k.Seq = lost.Seq
	return err
}

// The machine draws the members that depend on other resources one by one: see txPlan. A new one of them fails this test.
func TestDependentMembers(t *testing.T) {
	for _, tt := range []struct{ got, want []string }{
		{dependent(&core.UserMembers), []string{"plan_id", "custom_start"}},
		{dependent(&core.PlanMembers), nil},
		{dependent(&core.KeyMembers), []string{"user_id", "plan_id"}},
	} {
		if !slices.Equal(tt.got, tt.want) {
			t.Errorf("members that depend on other resources: got %v, want %v. Draw a new one in machine_tx.go", tt.got, tt.want)
		}
	}
}

func dependent[R, P any](ms *core.Members[R, P]) (names []string) {
	for i := range ms.List {
		if m := &ms.List[i]; !m.Independent() {
			names = append(names, m.Name)
		}
	}
	return names
}
