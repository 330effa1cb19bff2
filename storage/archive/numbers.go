package archive

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	"github.com/limitkeeper/limitkeeper/core"
)

// raiseNumbers makes a store give only numbers after last to the new resources of an account. imported are the largest
// numbers of the imported resources. A number that belongs to a deleted resource is raised by a placeholder, which is
// deleted again.
func raiseNumbers(ctx context.Context, s core.Store, account string, imported, last core.Numbers) error {
	var put, remove, removeUser []func(core.Tx) error // a user is deleted after its key
	if last.User > imported.User {
		put = append(put, func(tx core.Tx) error { return tx.PutUser(placeholderUser(account, last.User)) })
		removeUser = append(removeUser, func(tx core.Tx) error { return tx.DeleteUser(last.User) })
	}
	if last.Plan > imported.Plan {
		put = append(put, func(tx core.Tx) error { return tx.PutPlan(placeholderPlan(account, last.Plan)) })
		remove = append(remove, func(tx core.Tx) error { return tx.DeletePlan(placeholderID("plan_", last.Plan)) })
	}
	if last.Key > imported.Key { // its owner is the last user: the check of an import makes sure that there was one
		put = append(put, func(tx core.Tx) error { return tx.PutKey(placeholderKey(account, last.Key, last.User)) })
		remove = append(remove, func(tx core.Tx) error { return tx.DeleteKey(placeholderID("key_", last.Key)) })
	}
	for _, changes := range [][]func(core.Tx) error{put, remove, removeUser} {
		if len(changes) == 0 {
			continue
		}
		err := s.Update(ctx, account, func(tx core.Tx) (err error) {
			for _, change := range changes {
				err = errors.Join(err, change(tx))
			}
			return err
		})
		if err != nil {
			return fmt.Errorf("the numbers of account %s: %w", account, err)
		}
	}
	return nil
}

// placeholderName is the name of each placeholder.
const placeholderName = "deleted, stands here while an import raises its number"

// placeholderMetadata is the metadata of users and keys that are placeholders.
var placeholderMetadata = json.RawMessage(`{"limitkeeper":"stub"}`)

func placeholderUser(account string, id int64) *core.User {
	return &core.User{AccountID: account, ID: id, Name: placeholderName, Metadata: placeholderMetadata, Disabled: true}
}

func placeholderPlan(account string, seq int64) *core.Plan {
	return &core.Plan{AccountID: account, ID: placeholderID("plan_", seq), Seq: seq, Name: placeholderName, Inactive: true, Limit: 1}
}

func placeholderKey(account string, seq, user int64) *core.Key {
	id := placeholderID("key_", seq)
	return &core.Key{AccountID: account, ID: id, Seq: seq, Name: placeholderName, UserID: user, Status: core.KeyInactive,
		Digest: core.DigestOf("stub " + account + " " + id), Metadata: placeholderMetadata}
}

func placeholderID(prefix string, seq int64) string {
	return prefix + "stub" + strconv.FormatInt(seq, 10)
}
