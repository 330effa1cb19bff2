package core

import (
	"cmp"
	"time"

	"github.com/limitkeeper/limitkeeper/core/secrets"
)

// OwnerKey is a credential of an account for the REST API.
type OwnerKey struct {
	ID        string         `json:"id"` // okey_…
	AccountID string         `json:"account_id"`
	Name      string         `json:"name"`
	Role      Role           `json:"role,omitempty"` // "": RoleOwner
	Digest    secrets.Digest `json:"digest"`
	Hint      string         `json:"hint"` // lk_…wxyz
	CreatedAt time.Time      `json:"created_at"`
	ExpiresAt *time.Time     `json:"expires_at,omitempty"` // nil: never
	RevokedAt *time.Time     `json:"revoked_at,omitempty"` // nil: in force

	LastUsedAt *time.Time `json:"last_used_at,omitempty"` // to the minute; nil: never
}

// ItsRole returns the role of the key, which is never empty.
func (k *OwnerKey) ItsRole() Role { return cmp.Or(k.Role, RoleOwner) }

// OwnerKeySpec is what the creator of an owner's key chooses.
type OwnerKeySpec struct {
	Name      string
	Role      Role       // "": RoleOwner
	ExpiresAt *time.Time // in the future; nil: never
}

// Clean trims the name, fills in the role, and checks all members at the time now.
func (s OwnerKeySpec) Clean(now time.Time) (_ OwnerKeySpec, err error) {
	if s.Name, err = CleanName("name", s.Name); err != nil {
		return s, err
	}
	s.Role = cmp.Or(s.Role, RoleOwner)
	if err := CheckRole(s.Role, KeyRoles()); err != nil {
		return s, err
	}
	if s.ExpiresAt == nil {
		return s, nil
	}
	at := s.ExpiresAt.UTC().Truncate(time.Millisecond)
	switch {
	case !at.After(now):
		return s, Invalid("expires_at", "Expires at must be in the future")
	case at.Year() > 9999: // JSON has no such time
		return s, Invalid("expires_at", "Expires at must be before the year 10000 in UTC")
	}
	s.ExpiresAt = &at
	return s, nil
}

// InForce reports whether the key is neither revoked nor expired at the time now.
func (k *OwnerKey) InForce(now time.Time) bool {
	return k.RevokedAt == nil && (k.ExpiresAt == nil || now.Before(*k.ExpiresAt))
}
