package caddymodule

import (
	"errors"
	"fmt"
	"strings"

	"github.com/caddyserver/caddy/v2"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/secrets"
)

// provisionAccounts replaces the placeholders in the accounts.
func (a *App) provisionAccounts() (err error) {
	repl, seen, keys := caddy.NewReplacer(), map[string]bool{}, map[string]bool{}
	for i := range a.Accounts {
		acc := &a.Accounts[i]
		if acc.Name, err = repl.ReplaceOrErr(acc.Name, true, true); err != nil {
			return fmt.Errorf("name of account %d: %w", i, err)
		}
		if acc.Name = strings.TrimSpace(acc.Name); acc.Name == "" || seen[acc.Name] {
			return fmt.Errorf("account %d: the name %q is empty or used twice", i, acc.Name)
		}
		seen[acc.Name] = true
		if acc.Key, err = repl.ReplaceOrErr(acc.Key, true, true); err != nil {
			return fmt.Errorf("key of account %q: %w", acc.Name, err)
		}
		if acc.Key = strings.TrimSpace(acc.Key); !secrets.WellFormedOwnerSecret(acc.Key) {
			return fmt.Errorf("key of account %q: an owner's key is lk_ and 29 letters or digits", acc.Name)
		}
		if keys[acc.Key] {
			return fmt.Errorf("key of account %q: another account has the same key", acc.Name)
		}
		keys[acc.Key] = true
		if acc.KeyPrefix, err = repl.ReplaceOrErr(acc.KeyPrefix, true, true); err == nil && acc.KeyPrefix != "" {
			err = checkKeyPrefix(acc.KeyPrefix)
		}
		if err != nil {
			return fmt.Errorf("key_prefix of account %q: %w", acc.Name, err)
		}
	}
	return nil
}

// checkKeyPrefix returns an error for an invalid prefix, with a text for a config.
func checkKeyPrefix(prefix string) error {
	if e, ok := errors.AsType[*core.Error](core.CheckKeyPrefix(prefix)); ok {
		return errors.New(strings.ToLower(e.Detail[:1]) + e.Detail[1:])
	}
	return nil
}

// patch returns the changes of the account that the config asks for.
func (acc *Account) patch() (p core.AccountPatch) {
	if acc.KeyPrefix != "" {
		p.KeyPrefix = &acc.KeyPrefix
	}
	return p
}
