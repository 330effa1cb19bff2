package migrate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/limitkeeper/limitkeeper/core"
)

// numbers are the largest numbers that an account has given, to resources that exist or are deleted.
type numbers struct{ user, plan, key int64 }

// errRollback ends a transaction without a change.
var errRollback = errors.New("the transaction changes nothing")

// lastNumbers creates a user, a plan and a key to see the next numbers, and rolls the transaction back.
func lastNumbers(ctx context.Context, s core.Store, account string) (n numbers, err error) {
	err = s.Update(ctx, account, func(tx core.Tx) error {
		u, p, k := placeholderUser(account, 0), placeholderPlan(account, 0), placeholderKey(account, 0, 0)
		if err := tx.PutUser(u); err != nil {
			return err
		}
		k.UserID = u.ID
		if err := errors.Join(tx.PutPlan(p), tx.PutKey(k)); err != nil {
			return err
		}
		n = numbers{user: u.ID - 1, plan: p.Seq - 1, key: k.Seq - 1}
		return errRollback
	})
	if errors.Is(err, errRollback) {
		return n, nil
	}
	return numbers{}, fmt.Errorf("the numbers of account %s: %w", account, err)
}

// raiseNumbers makes the target give only numbers that the source has never given, even to resources that are
// deleted. It puts placeholders with the last numbers, and deletes them.
func (m *migration) raiseNumbers(ctx context.Context, account string) error {
	want, err := lastNumbers(ctx, m.from, account)
	if err != nil {
		return err
	}
	have, err := lastNumbers(ctx, m.to, account)
	if err != nil {
		return err
	}
	if have.user >= want.user && have.plan >= want.plan && have.key >= want.key {
		return nil
	}
	_, missing := m.from.User(ctx, account, want.user)
	if missing != nil && !errors.Is(missing, core.ErrUserNotFound) {
		return missing
	}
	var put placeholders
	err = m.update(ctx, account, func(tx core.Tx) (err error) {
		put = nil
		if missing != nil && want.user > 0 { // the user of the key, too
			put.addUser(want.user)
			err = tx.PutUser(placeholderUser(account, want.user))
		}
		if have.plan < want.plan {
			p := placeholderPlan(account, want.plan)
			put.addPlan(p.ID)
			err = errors.Join(err, tx.PutPlan(p))
		}
		if have.key < want.key {
			k := placeholderKey(account, want.key, want.user)
			put.addKey(k.ID)
			err = errors.Join(err, tx.PutKey(k))
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("the numbers of account %s: %w", account, err)
	}
	return m.deletePlaceholders(ctx, account, put)
}

// placeholders delete the placeholders of an account on the target. Their name and metadata identify them: an
// interrupted run may leave some, and the next run deletes them.
type placeholders []func(core.Tx) error

func (p *placeholders) addUser(id int64) {
	*p = append(*p, func(tx core.Tx) error { return tx.DeleteUser(id) })
}

func (p *placeholders) addPlan(id string) {
	*p = append(*p, func(tx core.Tx) error { return tx.DeletePlan(id) })
}

func (p *placeholders) addKey(id string) {
	*p = append(*p, func(tx core.Tx) error { return tx.DeleteKey(id) })
}

// deletePlaceholders deletes placeholders, the last one first: a key before its user.
func (m *migration) deletePlaceholders(ctx context.Context, account string, p placeholders) error {
	for _, remove := range slices.Backward(p) {
		if err := m.update(ctx, account, remove); err != nil {
			return fmt.Errorf("a placeholder of account %s: %w", account, err)
		}
	}
	return nil
}

// deleteLeftover deletes the placeholders that an interrupted run has left in an account.
func (m *migration) deleteLeftover(ctx context.Context, account string) error {
	return m.deletePlaceholders(ctx, account, m.leftover[account])
}

// stub is in the metadata, the ids and the digests of placeholders. Its value must stay: an interrupted run may have
// left placeholders.
const stub = "stub"

// placeholderName is the name of each placeholder.
const placeholderName = "deleted, stands here while its history is taken over"

// placeholderMetadata is the metadata of users and keys that are placeholders.
var placeholderMetadata = json.RawMessage(`{"limitkeeper":"` + stub + `"}`)

func isPlaceholderUser(u *core.User) bool {
	return u.Name == placeholderName && string(u.Metadata) == string(placeholderMetadata)
}

func isPlaceholderKey(k *core.Key) bool {
	return k.Name == placeholderName && string(k.Metadata) == string(placeholderMetadata)
}

func isPlaceholderPlan(p *core.Plan) bool { return p.Name == placeholderName && p.Inactive }

func placeholderUser(account string, id int64) *core.User {
	return &core.User{AccountID: account, ID: id, Name: placeholderName, Metadata: placeholderMetadata, Disabled: true}
}

func placeholderPlan(account string, seq int64) *core.Plan {
	return &core.Plan{AccountID: account, ID: placeholderID("plan_", seq), Seq: seq, Name: placeholderName, Inactive: true, Limit: 1}
}

func placeholderKey(account string, seq, user int64) *core.Key {
	id := placeholderID("key_", seq)
	return &core.Key{AccountID: account, ID: id, Seq: seq, Name: placeholderName, UserID: user, Status: core.KeyInactive,
		Digest: core.DigestOf(stub + " " + account + " " + id), Metadata: placeholderMetadata}
}

func placeholderID(prefix string, seq int64) string {
	return prefix + stub + strconv.FormatInt(seq, 10)
}
