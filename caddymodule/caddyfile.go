package caddymodule

import (
	"maps"
	"slices"
	"strings"

	"github.com/caddyserver/caddy/v2/caddyconfig"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/internal/nearest"
)

// apiDirective is the directive of the REST API.
const apiDirective = "limitkeeper_api"

func init() {
	httpcaddyfile.RegisterGlobalOption(appName, parseGlobalOption)
	httpcaddyfile.RegisterHandlerDirective(appName, parseHandler(func() handler { return new(Gateway) }))
	httpcaddyfile.RegisterDirectiveOrder(appName, httpcaddyfile.Before, "basic_auth")
	httpcaddyfile.RegisterHandlerDirective(apiDirective, parseHandler(func() handler { return new(API) }))
	httpcaddyfile.RegisterDirectiveOrder(apiDirective, httpcaddyfile.Before, "respond")
}

// handler is an HTTP handler with a directive of its own.
type handler interface {
	caddyhttp.MiddlewareHandler
	caddyfile.Unmarshaler
}

func parseHandler(newHandler func() handler) httpcaddyfile.UnmarshalHandlerFunc {
	return func(h httpcaddyfile.Helper) (caddyhttp.MiddlewareHandler, error) {
		m := newHandler()
		return m, m.UnmarshalCaddyfile(h.Dispenser)
	}
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
}

// parser parses the arguments of a word.
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
			return d.Errf("unknown word %q in %s%s; its words are %s", core.MaskSecrets(word), what, hint, strings.Join(known, ", "))
		}
		if seen[word] && !w.repeatable[word] {
			return d.Errf("%s is given twice in %s", word, what)
		}
		seen[word] = true
		if err := parse(d); err != nil {
			return err
		}
	}
	return nil
}

// blockOf names the block of the words that are often written into another one.
var blockOf = func() map[string]string {
	of := map[string]string{}
	for block, its := range map[string]string{
		"the block of store badger":            "durability min_free max_history",
		"the global option " + appName:         "store key_cache history_retention service_rate_limit max_users max_keys max_plans",
		"the directive " + appName:             "keep_key cost request_id on_store_error observe errors headers",
		"a block account in the global option": "key_prefix",
		"the directive " + apiDirective:        "dashboard",
	} {
		for word := range strings.FieldsSeq(its) {
			of[word] = block
		}
	}
	return of
}()

// oneArg returns the only argument of a word, which must not be empty.
func oneArg(d *caddyfile.Dispenser) (string, error) {
	var s string
	if !d.AllArgs(&s) || s == "" {
		return "", d.ArgErr()
	}
	return s, noBlock(d)
}

// oneOf returns the parser of a word with one of the choices.
func oneOf(to *string, choices ...string) parser {
	return func(d *caddyfile.Dispenser) (err error) {
		word := d.Val()
		if *to, err = oneArg(d); err == nil && !slices.Contains(choices, *to) {
			err = d.Errf("%s: want %s, got %q", word, strings.Join(choices, " or "), *to)
		}
		return err
	}
}

// noArgs returns an error if a word has arguments or a block.
func noArgs(d *caddyfile.Dispenser) error {
	word := d.Val()
	if d.NextArg() {
		return d.Errf("%s takes no argument, got %q", word, core.MaskSecrets(d.Val()))
	}
	return noBlock(d)
}

// noBlock returns an error if a word has a block.
func noBlock(d *caddyfile.Dispenser) error {
	for nesting := d.Nesting(); d.NextBlock(nesting); {
		return d.Err("unexpected block: this word takes no block")
	}
	return nil
}

// Interface guards.
var (
	_ caddyfile.Unmarshaler = (*BadgerStore)(nil)
	_ caddyfile.Unmarshaler = (*RedisStore)(nil)
)
