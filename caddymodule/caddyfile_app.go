package caddymodule

import (
	"fmt"
	"strconv"

	"github.com/caddyserver/caddy/v2/caddyconfig"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"

	"github.com/limitkeeper/limitkeeper/storage/badgerstore"
)

// UnmarshalCaddyfile implements [caddyfile.Unmarshaler]. docs/caddyfile.md describes the words.
func (a *App) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	d.Next() // the option's name
	if d.NextArg() {
		return d.ArgErr()
	}
	return words{
		parse: map[string]parser{
			"store":              a.unmarshalStore,
			"key_cache":          whole(&a.KeyCache, 1),
			"history_retention":  duration(&a.HistoryRetention, "30d"),
			"service_rate_limit": text(&a.ServiceRateLimit),
			"thresholds":         args(a.setThresholds),
			"max_users":          whole(&a.MaxUsers, 1),
			"max_keys":           whole(&a.MaxKeys, 1),
			"max_plans":          whole(&a.MaxPlans, 1),
			"account":            a.unmarshalAccount,

			"webhook_allow_private": flag(&a.WebhookAllowPrivate),
		},
		repeatable: map[string]bool{"account": true},
		check:      func() error { _, err := a.Tunables(); return err },
	}.block(d, "the global option "+appName)
}

// setThresholds sets the thresholds of events. Tunables checks them.
func (a *App) setThresholds(word string, args []string) error {
	if len(args) == 0 {
		return errCount
	}
	for _, arg := range args {
		n, err := strconv.ParseInt(arg, 10, 64)
		if err != nil {
			return fmt.Errorf("%s: want whole numbers of per cent without a sign, such as 80 100, got %q", word, arg)
		}
		a.Thresholds = append(a.Thresholds, n)
	}
	return nil
}

func (a *App) unmarshalStore(d *caddyfile.Dispenser) error {
	if !d.NextArg() {
		return d.ArgErr()
	}
	kind := d.Val()
	if err := knownStore(kind); err != nil {
		return d.WrapErr(err)
	}
	m, err := caddyfile.UnmarshalModule(d, storeNamespace+kind)
	if err != nil {
		return err
	}
	a.StoreRaw = caddyconfig.JSONModuleObject(m, "module", kind, nil)
	return nil
}

func (a *App) unmarshalAccount(d *caddyfile.Dispenser) error {
	var acc Account
	if !d.AllArgs(&acc.Name) {
		return d.ArgErr()
	}
	for _, have := range a.Accounts {
		if have.Name == acc.Name {
			return d.Errf("account %s is given twice", acc.Name)
		}
	}
	err := words{parse: map[string]parser{
		"key": args(func(_ string, args []string) error { // errors never quote the argument, which is a secret
			if len(args) != 1 {
				return fmt.Errorf("account %s: want one owner's key after the word key, got %d", acc.Name, len(args))
			}
			acc.Key = args[0]
			return nil
		}),
		"key_prefix": one(func(_, prefix string) error {
			if acc.KeyPrefix = prefix; hasPlaceholders(prefix) {
				return nil
			}
			if err := checkKeyPrefix(prefix); err != nil {
				return fmt.Errorf("account %s: key_prefix: %w", acc.Name, err)
			}
			return nil
		}),
	}}.block(d, "the block account")
	if err != nil {
		return err
	}
	if acc.Key == "" {
		return d.Errf("account %s has no line with its owner's key, such as: key {env.LIMITKEEPER_KEY}", acc.Name)
	}
	a.Accounts = append(a.Accounts, acc)
	return nil
}

// UnmarshalCaddyfile implements [caddyfile.Unmarshaler]. docs/caddyfile.md describes the words.
func (b *BadgerStore) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	d.Next() // the module's name
	if d.NextArg() {
		b.Dir = d.Val()
	}
	if d.NextArg() {
		return d.ArgErr()
	}
	return words{
		parse: map[string]parser{
			"durability":  text(&b.Durability),
			"min_free":    size(&b.MinFree, badgerstore.MinMinFree),
			"max_history": size(&b.MaxHistory, minMaxHistory),
		},
		check: func() error { _, err := parseDurability(b.Durability); return err },
	}.block(d, "store badger")
}
