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
	user := last.User > imported.User
	key := last.Key > imported.Key
	plan := last.Plan > imported.Plan
	owner := last.User // of the placeholder of the key; the check of an import makes sure that there was a user
	put := func(tx core.Tx) (err error) {
		if user {
			err = tx.PutUser(placeholderUser(account, last.User))
		}
		if plan {
			err = errors.Join(err, tx.PutPlan(placeholderPlan(account, last.Plan)))
		}
		if key {
			err = errors.Join(err, tx.PutKey(placeholderKey(account, last.Key, owner)))
		}
		return err
	}
	remove := func(tx core.Tx) (err error) {
		if key {
			err = tx.DeleteKey(placeholderKey(account, last.Key, owner).ID)
		}
		if plan {
			err = errors.Join(err, tx.DeletePlan(placeholderPlan(account, last.Plan).ID))
		}
		return err
	}
	removeUser := func(tx core.Tx) error {
		if user {
			return tx.DeleteUser(last.User)
		}
		return nil
	}
	if user || plan || key {
		for _, step := range []func(core.Tx) error{put, remove, removeUser} { // a user is deleted after its key
			if err := s.Update(ctx, account, step); err != nil {
				return fmt.Errorf("the numbers of account %s: %w", account, err)
			}
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
