package core

// Role says what a person or an owner's key may do in an account.
type Role string

// The roles. The zero Role may do nothing.
const (
	RoleOwner     Role = "owner"     // everything
	RoleEditor    Role = "editor"    // everything but the account itself, its people and its owner's keys
	RoleSupport   Role = "support"   // reads, adjusts usage and disables keys
	RoleViewer    Role = "viewer"    // reads
	RoleValidator Role = "validator" // only of owner's keys: validates requests, and ends their holds
)

// Permission is what an operation needs.
type Permission uint8

// The permissions.
const (
	PermitNothing  Permission = iota // the operation needs no permission
	PermitValidate                   // decide and count requests
	PermitRead                       // see everything but secrets
	PermitSupport                    // adjust usage and disable keys
	PermitEdit                       // change plans, users, keys, prices and webhooks
	PermitOwn                        // change the account itself, its people and its owner's keys
)

// May reports whether the role has a permission.
func (r Role) May(p Permission) bool {
	switch r {
	case RoleOwner:
		return true
	case RoleEditor:
		return p <= PermitEdit
	case RoleSupport:
		return p == PermitNothing || p == PermitRead || p == PermitSupport
	case RoleViewer:
		return p == PermitNothing || p == PermitRead
	case RoleValidator:
		return p <= PermitValidate
	}
	return p == PermitNothing
}
