package caddymodule

import (
	"math"
	"strconv"

	"github.com/caddyserver/caddy/v2/caddyconfig"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/dustin/go-humanize"

	"github.com/limitkeeper/limitkeeper/storage/badgerstore"
)

// UnmarshalCaddyfile implements [caddyfile.Unmarshaler]:
//
//	limitkeeper {
//		store <module> [<args>...]
//		key_cache <entries>
//		history_retention <duration>
//		service_rate_limit <n>/<duration>|off
//		max_users <n>
//		max_keys <n>
//		max_plans <n>
//		account <name> {
//			key <owner's key>
//			key_prefix <prefix>
//		}
//	}
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
			"service_rate_limit": a.unmarshalRate,
			"max_users":          whole(&a.MaxUsers, 1),
			"max_keys":           whole(&a.MaxKeys, 1),
			"max_plans":          whole(&a.MaxPlans, 1),
			"account":            a.unmarshalAccount,
		},
		repeatable: map[string]bool{"account": true},
	}.block(d, "the global option "+appName)
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

func (a *App) unmarshalRate(d *caddyfile.Dispenser) (err error) {
	if a.ServiceRateLimit, err = oneArg(d); err != nil {
		return err
	}
	if _, _, err := parseRate(a.ServiceRateLimit); err != nil {
		return d.WrapErr(err)
	}
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
		"key": func(d *caddyfile.Dispenser) error { // errors never quote the argument, which is a secret
			args := d.RemainingArgs()
			if len(args) != 1 {
				return d.Errf("account %s: want one owner's key after the word key, got %d", acc.Name, len(args))
			}
			acc.Key = args[0]
			return noBlock(d)
		},
		"key_prefix": func(d *caddyfile.Dispenser) (err error) {
			if acc.KeyPrefix, err = oneArg(d); err != nil || hasPlaceholders(acc.KeyPrefix) {
				return err
			}
			if err := checkKeyPrefix(acc.KeyPrefix); err != nil {
				return d.Errf("account %s: key_prefix: %v", acc.Name, err)
			}
			return nil
		},
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

// UnmarshalCaddyfile implements [caddyfile.Unmarshaler]:
//
//	badger [<dir>] {
//		durability process|power
//		min_free <size>
//		max_history <size>
//	}
func (b *BadgerStore) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	d.Next() // the module's name
	if d.NextArg() {
		b.Dir = d.Val()
	}
	if d.NextArg() {
		return d.ArgErr()
	}
	return words{parse: map[string]parser{
		"durability":  oneOf(&b.Durability, "process", "power"),
		"min_free":    size(&b.MinFree, badgerstore.MinMinFree),
		"max_history": size(&b.MaxHistory, minMaxHistory),
	}}.block(d, "store badger")
}

// size returns the parser of a word with a size with its unit, at least least bytes.
func size(to *int64, least uint64) parser {
	return func(d *caddyfile.Dispenser) error {
		word := d.Val()
		s, err := oneArg(d)
		if err != nil {
			return err
		}
		n, err := humanize.ParseBytes(s)
		if _, noUnit := strconv.Atoi(s); err != nil || noUnit == nil || n < least || n > math.MaxInt64 {
			return d.Errf("%s: want a size with its unit, like 20GB, and at least %dMiB; got %q", word, least>>20, s)
		}
		*to = int64(n)
		return nil
	}
}
