package service

import (
	"github.com/limitkeeper/limitkeeper/core"
)

// KeyDisabled says that a key that was active, or all keys of a user, cannot be used any more.
type KeyDisabled struct {
	Account string // id
	KeyID   string // "": all keys of the user
	UserID  int64
	How     DisabledHow
}

// DisabledHow is the change that ended the use of a key.
type DisabledHow string

// The changes that end the use of a key. The end of its ExpiresAt is not a change.
const (
	HowInactive     DisabledHow = "inactive"      // the status of the key was set
	HowDeleted      DisabledHow = "deleted"       // the key was deleted
	HowUserDisabled DisabledHow = "user_disabled" // the user was disabled
	HowUserDeleted  DisabledHow = "user_deleted"  // the user was deleted with its keys
)

// noteKey notes whether a change ends the use of a key. after is nil for a deletion.
func (b *Transaction) noteKey(before, after *core.Key) {
	switch {
	case before.Status != core.KeyActive:
	case after == nil:
		b.disabled = append(b.disabled, KeyDisabled{b.account, before.ID, before.UserID, HowDeleted})
	case after.Status != core.KeyActive:
		b.disabled = append(b.disabled, KeyDisabled{b.account, after.ID, after.UserID, HowInactive})
	}
}

// noteUser notes whether a change ends the use of the keys of a user. after is nil for a deletion.
func (b *Transaction) noteUser(before, after *core.User) {
	switch {
	case before.Disabled:
	case after == nil:
		b.disabled = append(b.disabled, KeyDisabled{b.account, "", before.ID, HowUserDeleted})
	case after.Disabled:
		b.disabled = append(b.disabled, KeyDisabled{b.account, "", before.ID, HowUserDisabled})
	}
}
