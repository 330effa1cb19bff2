package caddymodule

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"github.com/dustin/go-humanize"

	"github.com/limitkeeper/limitkeeper/core/secrets"
	"github.com/limitkeeper/limitkeeper/internal/nearest"
)

// apiDirective is the directive of the REST API.
const apiDirective = "limitkeeper_api"

func init() {
	httpcaddyfile.RegisterGlobalOption(appName, parseGlobalOption)
	httpcaddyfile.RegisterHandlerDirective(appName, func(h httpcaddyfile.Helper) (caddyhttp.MiddlewareHandler, error) {
		g := new(Gateway)
		return g, g.UnmarshalCaddyfile(h.Dispenser)
	})
	httpcaddyfile.RegisterDirectiveOrder(appName, httpcaddyfile.Before, "basic_auth")
	httpcaddyfile.RegisterHandlerDirective(apiDirective, func(h httpcaddyfile.Helper) (caddyhttp.MiddlewareHandler, error) {
		a := new(API)
		return a, a.UnmarshalCaddyfile(h.Dispenser)
	})
	httpcaddyfile.RegisterDirectiveOrder(apiDirective, httpcaddyfile.Before, "respond")
}

// parseGlobalOption parses the global option limitkeeper.
func parseGlobalOption(d *caddyfile.Dispenser, existing any) (any, error) {
	a := new(App)
	if err := a.UnmarshalCaddyfile(d); err != nil {
		return nil, err
	}
	if existing != nil {
		return nil, d.Errf("the global option %s is given twice", appName)
	}
	return httpcaddyfile.App{Name: appName, Value: caddyconfig.JSON(a, nil)}, nil
}

// words is the grammar of a block: the parser for the arguments of each word. A word may appear
// once, unless it is in repeatable.
type words struct {
	parse      map[string]parser
	repeatable map[string]bool
	check      func() error // checks the values after each word; nil for nothing
}

// parser parses the arguments of a word. An error gets file and line.
type parser = func(*caddyfile.Dispenser) error

// block parses the next block. An unknown or repeated word is an error with file and line.
func (w words) block(d *caddyfile.Dispenser, what string) error {
	seen := map[string]bool{}
	for nesting := d.Nesting(); d.NextBlock(nesting); {
		word := d.Val()
		parse, ok := w.parse[word]
		if !ok {
			known := slices.Sorted(maps.Keys(w.parse))
			hint := nearest.Hint(word, known)
			if block := blockOf[word]; block != "" {
				hint = ": it is a word of " + block
			}
			return d.Errf("unknown word %q in %s%s; its words are %s", secrets.MaskSecrets(word), what, hint, strings.Join(known, ", "))
		}
		if seen[word] && !w.repeatable[word] {
			return d.Errf("%s is given twice in %s", word, what)
		}
		seen[word] = true
		if err := parse(d); err != nil {
			return err
		}
		if w.check != nil {
			if err := w.check(); err != nil {
				return d.WrapErr(err)
			}
		}
	}
	return nil
}

// blockOf names the block of the words that are often written into another one.
var blockOf = func() map[string]string {
	of := map[string]string{}
	for block, its := range map[string]string{
		"the block of store badger":            "durability min_free max_history",
		"the global option " + appName:         "store key_cache history_retention service_rate_limit thresholds max_users max_keys max_plans",
		"the directive " + appName:             "keep_key cost charge clamp count_on on_unknown request_id on_store_error observe errors headers",
		"a block account in the global option": "key_prefix",
		"the directive " + apiDirective:        "dashboard people",
	} {
		for word := range strings.FieldsSeq(its) {
			of[word] = block
		}
	}
	return of
}()

// errCount stands for the error of Caddy about a wrong number of arguments.
var errCount = errors.New("wrong argument count")

// args returns the parser of a word without a block.
func args(set func(word string, args []string) error) parser {
	return func(d *caddyfile.Dispenser) error {
		word, args := d.Val(), d.RemainingArgs()
		err := set(word, args)
		if err == errCount {
			return d.ArgErr()
		}
		if err != nil {
			return d.WrapErr(err)
		}
		for nesting := d.Nesting(); d.NextBlock(nesting); {
			return d.Err("unexpected block: this word takes no block")
		}
		return nil
	}
}

// one returns the parser of a word with one argument, which is not empty.
func one(set func(word, arg string) error) parser {
	return args(func(word string, args []string) error {
		if len(args) != 1 || args[0] == "" {
			return errCount
		}
		return set(word, args[0])
	})
}

// text returns the parser of a word with any argument.
func text(to *string) parser {
	return one(func(_, arg string) error { *to = arg; return nil })
}

// flag returns the parser of a word without arguments.
func flag(to *bool) parser {
	return args(func(word string, args []string) error {
		if *to = true; len(args) > 0 {
			return fmt.Errorf("%s takes no argument, got %q", word, secrets.MaskSecrets(args[0]))
		}
		return nil
	})
}

// secret returns the parser of a word with one secret argument. Errors never quote the argument.
func secret(to *string) parser {
	return args(func(word string, args []string) error {
		if len(args) != 1 || args[0] == "" {
			return fmt.Errorf("%s: want one argument, such as {env.REDIS_PASSWORD}, got %d", word, len(args))
		}
		*to = args[0]
		return nil
	})
}

// whole returns the parser of a word with a whole number of smallest or more.
func whole(to *int, smallest int) parser {
	return one(func(word, arg string) error { return setWhole(to, smallest, word, arg) })
}

func setWhole(to *int, smallest int, word, arg string) (err error) {
	if *to, err = strconv.Atoi(arg); err != nil || *to < smallest {
		return fmt.Errorf("%s: want a whole number of %d or more, got %q", word, smallest, arg)
	}
	return nil
}

// duration returns the parser of a word with a positive duration. The error has an example of one.
func duration(to *caddy.Duration, example string) parser {
	return one(func(word, arg string) error { return setDuration(to, example, word, arg) })
}

func setDuration(to *caddy.Duration, example, word, arg string) error {
	v, err := caddy.ParseDuration(strings.TrimSpace(arg))
	if *to = caddy.Duration(v); err != nil || v <= 0 {
		return fmt.Errorf("%s: want a duration like %s, got %q", word, example, arg)
	}
	return nil
}

// size returns the parser of a word with a size with its unit, at least least bytes.
func size(to *int64, least uint64) parser {
	return one(func(word, arg string) error {
		n, err := humanize.ParseBytes(arg)
		if _, noUnit := strconv.Atoi(arg); err != nil || noUnit == nil || n < least || n > math.MaxInt64 {
			return fmt.Errorf("%s: want a size with its unit, like 20GB, and at least %dMiB; got %q", word, least>>20, arg)
		}
		*to = int64(n)
		return nil
	})
}

// Interface guards.
var (
	_ caddyfile.Unmarshaler = (*BadgerStore)(nil)
	_ caddyfile.Unmarshaler = (*RedisStore)(nil)
)
