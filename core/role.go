package core

import (
	"slices"
	"strings"
)

// Role says what a person or an owner's key may do in an account.
type Role string

// The roles. The zero Role may do nothing.
const (
	RoleOwner     Role = "owner"     // everything
	RoleEditor    Role = "editor"    // everything but the account itself, its people and its owner's keys
	RoleSupport   Role = "support"   // reads, adjusts usage and disables keys
	RoleViewer    Role = "viewer"    // reads
	RoleValidator Role = "validator" // only of owner's keys: validates requests, sees and ends their holds
)

// PersonRoles returns the roles of people, from the weakest to the strongest.
func PersonRoles() []Role { return []Role{RoleViewer, RoleSupport, RoleEditor, RoleOwner} }

// KeyRoles returns the roles of owner's keys, from the weakest to the strongest.
func KeyRoles() []Role { return append([]Role{RoleValidator}, PersonRoles()...) }

// Permission is what an operation needs. The zero Permission is for operations that each role has, such as signing out.
type Permission uint8

// The permissions.
const (
	PermitNothing  Permission = iota // the operation needs no permission
	PermitValidate                   // decide and count requests
	PermitHold                       // see a hold
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
		return p == PermitSupport || RoleViewer.May(p)
	case RoleViewer:
		return p == PermitNothing || p == PermitHold || p == PermitRead
	case RoleValidator:
		return p <= PermitHold
	}
	return p == PermitNothing
}

// Require returns nil if the role has a permission, and otherwise an error with the code FORBIDDEN. The error says which
// role the caller has, and which roles have the permission.
func (r Role) Require(p Permission) error {
	if r.May(p) {
		return nil
	}
	var may []string
	for _, role := range KeyRoles() {
		if role.May(p) {
			may = append(may, string(role))
		}
	}
	needs := may[len(may)-1]
	if len(may) > 1 {
		needs = strings.Join(may[:len(may)-1], ", ") + " or " + needs
	}
	return &Error{Code: CodeForbidden, Message: "The role " + string(r) + " may not do this: it needs the role " + needs}
}

// CheckRole returns a validation error unless the role is one of the roles.
func CheckRole(r Role, of []Role) error {
	if slices.Contains(of, r) {
		return nil
	}
	words := make([]string, len(of))
	for i, role := range of {
		words[i] = string(role)
	}
	return Invalid("role", "Role must be "+strings.Join(words[:len(words)-1], ", ")+" or "+words[len(words)-1])
}
