package core

import (
	"time"

	"github.com/limitkeeper/limitkeeper/core/secrets"
)

// OwnerKey is a credential of an account for the REST API.
type OwnerKey struct {
	ID        string         `json:"id"` // okey_…
	AccountID string         `json:"account_id"`
	Name      string         `json:"name"`
	Digest    secrets.Digest `json:"digest"`
	Hint      string         `json:"hint"` // lk_…wxyz
	CreatedAt time.Time      `json:"created_at"`
	ExpiresAt *time.Time     `json:"expires_at,omitempty"` // nil: never
	RevokedAt *time.Time     `json:"revoked_at,omitempty"` // nil: in force

	LastUsedAt *time.Time `json:"last_used_at,omitempty"` // to the minute; nil: never
}

// InForce reports whether the key is neither revoked nor expired at the time now.
func (k *OwnerKey) InForce(now time.Time) bool {
	return k.RevokedAt == nil && (k.ExpiresAt == nil || now.Before(*k.ExpiresAt))
}
