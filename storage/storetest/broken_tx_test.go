package storetest

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync"

	"github.com/limitkeeper/limitkeeper/core"
)

var brokenTransactions = []defect{
	{name: "keeps the writes of a transaction that failed", caughtBy: "machine",
		open: wrapped(func(s core.Store) core.Store { return keepsWrites{s} })},
	{name: "swallows the error of a transaction", caughtBy: "machine",
		open: wrapped(func(s core.Store) core.Store { return swallowsErrors{s} })},
	{name: "loses updates", caughtBy: "race/no lost update",
		open: wrapped(func(s core.Store) core.Store { return optimistic{s, false} })},
	{name: "validates reads but not counts", caughtBy: "race/count then create",
		open: wrapped(func(s core.Store) core.Store { return optimistic{s, true} })},
	{name: "lets a plan be given while it is deleted", caughtBy: "race/read then decide",
		open: wrapped(func(s core.Store) core.Store { return optimistic{s, true} })},
	{name: "reads in a transaction at several moments", caughtBy: "race/snapshot",
		open: wrapped(func(s core.Store) core.Store { return optimistic{s, false} })},
	{name: "stores arguments without a copy", caughtBy: "machine",
		open: wrapped(func(s core.Store) core.Store { return storesLate{s} })},
	{name: "reuses the ID of the last user", caughtBy: "machine",
		open: inTx(func(s core.Store, account string) func(core.Tx) core.Tx {
			var last int64
			if us := usersOf(s, account); len(us) > 0 {
				last = us[len(us)-1].ID
			}
			return func(tx core.Tx) core.Tx { return &reusesIDs{tx, last} }
		})},
	{name: "counts keys of any status", caughtBy: "machine",
		open: inTx(func(core.Store, string) func(core.Tx) core.Tx {
			return func(tx core.Tx) core.Tx { return countsAnyStatus{tx} }
		})},
	{name: "counts deleted plans", caughtBy: "machine",
		open: wrapped(func(s core.Store) core.Store {
			deleted := 0
			return wrappedTx{s, func(core.Store, string) func(core.Tx) core.Tx {
				return func(tx core.Tx) core.Tx { return countsDeletedPlans{tx, &deleted} }
			}}
		})},
	{name: "accepts an email in another case", caughtBy: "machine",
		open: accepting(func(u *core.User, err error) bool {
			return errors.Is(err, core.ErrDuplicateEmail) && *u.Email != core.FoldEmail(*u.Email)
		})},
	{name: "never frees an email", caughtBy: "machine", open: wrapped(newNeverFrees)},
	{name: "accepts an external id that is taken", caughtBy: "machine",
		open: accepting(func(_ *core.User, err error) bool { return errors.Is(err, core.ErrDuplicateExternalID) })},
	{name: "never frees an external id", caughtBy: "machine", open: wrapped(newNeverFrees)},
	{name: "ignores the case of external ids", caughtBy: "machine",
		open: inTx(func(s core.Store, account string) func(core.Tx) core.Tx {
			users := usersOf(s, account)
			return func(tx core.Tx) core.Tx { return foldsExternalIDs{tx, users} }
		})},
	{name: "forgets the external ids of its own transaction", caughtBy: "machine", open: inTx(checksEarly)},
	{name: "checks external ids before the transaction", caughtBy: "race/same email or external id", open: inTx(checksEarly)},
	{name: "leaves some of many keys of a deleted user", caughtBy: "delete/user with many keys",
		open: wrapped(func(s core.Store) core.Store { return leavesKeys{s} })},
	{name: "does not clear members", caughtBy: "machine",
		open: inTx(func(core.Store, string) func(core.Tx) core.Tx {
			return func(tx core.Tx) core.Tx { return neverClears{tx} }
		})},
}

// wrappedTx passes a wrapped transaction to functions. wrap is called before the transaction.
type wrappedTx struct {
	core.Store
	wrap func(core.Store, string) func(core.Tx) core.Tx
}

func inTx(wrap func(core.Store, string) func(core.Tx) core.Tx) func() Opened {
	return wrapped(func(s core.Store) core.Store { return wrappedTx{s, wrap} })
}

func (s wrappedTx) Update(ctx context.Context, account string, fn func(core.Tx) error) error {
	wrap := s.wrap(s.Store, account)
	return s.Store.Update(ctx, account, func(tx core.Tx) error { return fn(wrap(tx)) })
}

type keepsWrites struct{ core.Store }

func (s keepsWrites) Update(ctx context.Context, account string, fn func(core.Tx) error) (failed error) {
	err := s.Store.Update(ctx, account, func(tx core.Tx) error {
		failed = fn(tx)
		return nil
	})
	return errors.Join(failed, err)
}

type swallowsErrors struct{ core.Store }

func (s swallowsErrors) Update(ctx context.Context, account string, fn func(core.Tx) error) error {
	failed := false
	err := s.Store.Update(ctx, account, func(tx core.Tx) error {
		err := fn(tx)
		failed = err != nil
		return err
	})
	if failed {
		return nil
	}
	return err
}

// optimistic runs a function without a lock and stores its writes afterwards. With validate it
// first checks that the resources that were read are unchanged.
type optimistic struct {
	core.Store
	validates bool
}

var errConflict = errors.New("what was read has changed")

func (s optimistic) Update(ctx context.Context, account string, fn func(core.Tx) error) error {
	for {
		o := &optimisticTx{ctx: ctx, s: s.Store, account: account}
		if err := fn(o); err != nil {
			return err
		}
		runtime.Gosched()
		err := s.Store.Update(ctx, account, func(tx core.Tx) error {
			for _, still := range o.reads {
				if s.validates && !still(tx) {
					return errConflict
				}
			}
			return o.write(tx)
		})
		if !errors.Is(err, errConflict) {
			return err
		}
	}
}

// optimisticTx reads from the store, and records its reads and writes.
type optimisticTx struct {
	core.Tx // set while the writes are stored
	ctx     context.Context
	s       core.Store
	account string
	reads   []func(core.Tx) bool
	writes  []func(core.Tx) error
}

func (o *optimisticTx) write(tx core.Tx) error {
	for _, write := range o.writes {
		if err := write(tx); err != nil {
			return err
		}
	}
	return nil
}

func (o *optimisticTx) User(id int64) (*core.User, error) {
	u, err := o.s.User(o.ctx, o.account, id)
	o.reads = append(o.reads, func(tx core.Tx) bool {
		now, _ := tx.User(id)
		return (err == nil) == (now != nil) && (err != nil || now.Name == u.Name)
	})
	return u, err
}

func (o *optimisticTx) Plan(id string) (*core.Plan, error) {
	runtime.Gosched()
	p, err := o.s.Plan(o.ctx, o.account, id)
	o.reads = append(o.reads, func(tx core.Tx) bool {
		now, _ := tx.Plan(id)
		return (err == nil) == (now != nil)
	})
	return p, err
}

func (o *optimisticTx) Key(id string) (*core.Key, error) {
	k, err := o.s.Key(o.ctx, o.account, id)
	o.reads = append(o.reads, func(tx core.Tx) bool {
		now, _ := tx.Key(id)
		return reflect.DeepEqual(k, now)
	})
	return k, err
}

func (o *optimisticTx) CountUsers(f core.UserFilter) (int, error) {
	_, n, err := o.s.Users(o.ctx, o.account, f, core.Page{Number: 1, Size: 1})
	return n, err
}

func (o *optimisticTx) CountKeys(f core.KeyFilter) (int, error) {
	_, n, err := o.s.Keys(o.ctx, o.account, f, core.Page{Number: 1, Size: 1})
	return n, err
}

func (o *optimisticTx) Plans(p core.Page) ([]*core.Plan, int, error) {
	return o.s.Plans(o.ctx, o.account, p)
}

func (o *optimisticTx) later(write func(core.Tx) error) error {
	o.writes = append(o.writes, write)
	return nil
}

func (o *optimisticTx) PutUser(u *core.User) error {
	return o.later(func(tx core.Tx) error { return tx.PutUser(u) })
}

func (o *optimisticTx) PutPlan(p *core.Plan) error {
	return o.later(func(tx core.Tx) error { return tx.PutPlan(p) })
}

func (o *optimisticTx) PutKey(k *core.Key) error {
	return o.later(func(tx core.Tx) error { return tx.PutKey(k) })
}

func (o *optimisticTx) DeleteUser(id int64) error {
	return o.later(func(tx core.Tx) error { return tx.DeleteUser(id) })
}

func (o *optimisticTx) DeletePlan(id string) error {
	return o.later(func(tx core.Tx) error { return tx.DeletePlan(id) })
}

func (o *optimisticTx) DeleteKey(id string) error {
	return o.later(func(tx core.Tx) error { return tx.DeleteKey(id) })
}

// storesLate stores its arguments when the function has returned.
type storesLate struct{ core.Store }

func (s storesLate) Update(ctx context.Context, account string, fn func(core.Tx) error) error {
	return s.Store.Update(ctx, account, func(tx core.Tx) error {
		late := &lateTx{Tx: tx}
		if err := fn(late); err != nil {
			return err
		}
		return putting(late.given...)(tx)
	})
}

type lateTx struct {
	core.Tx
	given []any
}

func (tx *lateTx) PutUser(u *core.User) error {
	tx.given = append(tx.given, u)
	return tx.Tx.PutUser(u)
}

func (tx *lateTx) PutPlan(p *core.Plan) error {
	tx.given = append(tx.given, p)
	return tx.Tx.PutPlan(p)
}

// reusesIDs takes the next ID from the existing users.
type reusesIDs struct {
	core.Tx
	last int64
}

func (tx *reusesIDs) PutUser(u *core.User) error {
	if u.ID == 0 {
		tx.last++
		u.ID = tx.last
	}
	return tx.Tx.PutUser(u)
}

type countsAnyStatus struct{ core.Tx }

func (tx countsAnyStatus) CountKeys(f core.KeyFilter) (int, error) {
	f.Status = ""
	return tx.Tx.CountKeys(f)
}

// countsDeletedPlans counts deleted plans, too.
type countsDeletedPlans struct {
	core.Tx
	deleted *int
}

func (tx countsDeletedPlans) DeletePlan(id string) error {
	*tx.deleted++
	return tx.Tx.DeletePlan(id)
}

func (tx countsDeletedPlans) Plans(p core.Page) ([]*core.Plan, int, error) {
	list, n, err := tx.Tx.Plans(p)
	return list, n + *tx.deleted, err
}

// acceptsDuplicates stores a user without its email and external id in place of some errors.
type acceptsDuplicates struct {
	core.Tx
	accepts func(*core.User, error) bool
}

func accepting(accepts func(*core.User, error) bool) func() Opened {
	return inTx(func(core.Store, string) func(core.Tx) core.Tx {
		return func(tx core.Tx) core.Tx { return acceptsDuplicates{tx, accepts} }
	})
}

func (tx acceptsDuplicates) PutUser(u *core.User) error {
	err := tx.Tx.PutUser(u)
	if err != nil && tx.accepts(u, err) {
		other := *u
		other.Email, other.ExternalID = nil, ""
		err = tx.Tx.PutUser(&other)
		u.ID = other.ID
	}
	return err
}

// usersOf returns all users of an account.
func usersOf(s core.Store, account string) []*core.User {
	us, _, _ := s.Users(context.Background(), account, core.UserFilter{}, core.Page{Number: 1, Size: 1 << 20})
	return us
}

// checksEarly accepts every external id that no user has before the transaction.
func checksEarly(s core.Store, account string) func(core.Tx) core.Tx {
	users := usersOf(s, account)
	for range 10_000 { // until concurrent transactions have read the users, too
		runtime.Gosched()
	}
	return func(tx core.Tx) core.Tx {
		return acceptsDuplicates{tx, func(u *core.User, err error) bool {
			return errors.Is(err, core.ErrDuplicateExternalID) &&
				!slices.ContainsFunc(users, func(other *core.User) bool { return other.ExternalID == u.ExternalID })
		}}
	}
}

// foldsExternalIDs compares external ids without regard to case.
type foldsExternalIDs struct {
	core.Tx
	users []*core.User
}

func (tx foldsExternalIDs) PutUser(u *core.User) error {
	for _, other := range tx.users {
		if u.ExternalID != "" && other.ID != u.ID && strings.EqualFold(other.ExternalID, u.ExternalID) {
			return core.ErrDuplicateExternalID
		}
	}
	return tx.Tx.PutUser(u)
}

// neverFrees keeps the first user of every email and external id.
type neverFrees struct {
	core.Store
	mu    sync.Mutex
	owner map[string]int64
}

func newNeverFrees(s core.Store) core.Store { return &neverFrees{Store: s, owner: map[string]int64{}} }

func (s *neverFrees) Update(ctx context.Context, account string, fn func(core.Tx) error) error {
	return s.Store.Update(ctx, account, func(tx core.Tx) error { return fn(neverFreesTx{tx, s, account}) })
}

type neverFreesTx struct {
	core.Tx
	s       *neverFrees
	account string
}

func (tx neverFreesTx) PutUser(u *core.User) error {
	tx.s.mu.Lock()
	defer tx.s.mu.Unlock()
	name := func(f core.UserFilter) string { return fmt.Sprintf("%s %+v", tx.account, f) }
	for _, f := range u.UniqueFilters() {
		if owner, ok := tx.s.owner[name(f)]; ok && owner != u.ID {
			return f.Duplicate()
		}
	}
	err := tx.Tx.PutUser(u)
	for _, f := range u.UniqueFilters() {
		if err == nil {
			tx.s.owner[name(f)] = u.ID
		}
	}
	return err
}

// leavesKeys deletes at most a thousand keys of a user.
type leavesKeys struct{ core.Store }

func (s leavesKeys) Update(ctx context.Context, account string, fn func(core.Tx) error) error {
	before, _, _ := s.Keys(ctx, account, core.KeyFilter{}, core.Page{Number: 1, Size: 1 << 20})
	if err := s.Store.Update(ctx, account, fn); err != nil || len(before) < 1000 {
		return err
	}
	if _, left, _ := s.Keys(ctx, account, core.KeyFilter{}, core.Page{Number: 1, Size: 1}); left >= len(before) {
		return nil
	}
	return s.Store.Update(ctx, account, func(tx core.Tx) error {
		for _, k := range slices.Clip(before[1000:]) {
			if err := tx.PutKey(k); err != nil {
				return err
			}
		}
		return nil
	})
}

// neverClears keeps the email of a user whose email is removed.
type neverClears struct{ core.Tx }

func (tx neverClears) PutUser(u *core.User) error {
	if old, err := tx.Tx.User(u.ID); err == nil && u.Email == nil {
		kept := *u
		kept.Email = old.Email
		return tx.Tx.PutUser(&kept)
	}
	return tx.Tx.PutUser(u)
}
