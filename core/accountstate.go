package core

import (
	"fmt"
	"slices"
)

// MaxFormerNames is the largest number of former names that an account keeps.
const MaxFormerNames = 8

// StatusDeleting is the [Account.Status] of an account that is being deleted.
const StatusDeleting = "deleting"

// Closed reports whether everything of an account answers like something that does not exist.
func (a *Account) Closed() bool { return a.Disabled || a.Deleting }

// Status returns the state of an account, for people: active, disabled, deleting or incomplete.
func (a *Account) Status() string {
	switch {
	case a.Deleting:
		return StatusDeleting
	case a.Disabled:
		return "disabled"
	case a.Incomplete():
		return "incomplete"
	}
	return "active"
}

// Rename gives the account another name, cleaned as that of a new account. The account keeps its last [MaxFormerNames] names, so that a
// configuration that has not changed yet does not make a new account with one of them.
func (a *Account) Rename(name string) error {
	name, err := CleanName("name", name)
	if err != nil || name == a.Name {
		return err
	}
	isEither := func(former string) bool { return former == name || former == a.Name }
	former := append(slices.DeleteFunc(slices.Clone(a.FormerNames), isEither), a.Name)
	a.FormerNames, a.Name = former[max(0, len(former)-MaxFormerNames):], name
	return nil
}

// HadName reports whether the account had a name before its present one.
func (a *Account) HadName(name string) bool { return slices.Contains(a.FormerNames, name) }

// Usable returns an account that a store has found, or the error of the store. A closed account is [ErrAccountNotFound], and an account whose
// import has not finished is [ErrUnavailable]. The wrapping errors say so, for the operator.
func Usable(a *Account, err error) (*Account, error) {
	switch {
	case err != nil:
		return nil, err
	case a.Deleting:
		return nil, fmt.Errorf("%w: the account %q is being deleted", ErrAccountNotFound, a.Name)
	case a.Disabled:
		return nil, fmt.Errorf("%w: the account %q is disabled: limitkeeper account enable brings it back", ErrAccountNotFound, a.Name)
	case a.Incomplete():
		return nil, Unavailable(fmt.Errorf("the account %q is incomplete: its import has not finished. If no import runs, import the same file again", a.Name))
	}
	return a, nil
}
