package caddymodule

import (
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

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/internal/nearest"
	"github.com/limitkeeper/limitkeeper/storage/badgerstore"
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
	parse      map[string]func(*caddyfile.Dispenser) error
	repeatable map[string]bool
}

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
		parse: map[string]func(*caddyfile.Dispenser) error{
			"store":              a.unmarshalStore,
			"key_cache":          wholeNumber(&a.KeyCache),
			"history_retention":  a.unmarshalRetention,
			"service_rate_limit": a.unmarshalRate,
			"max_users":          wholeNumber(&a.MaxUsers),
			"max_keys":           wholeNumber(&a.MaxKeys),
			"max_plans":          wholeNumber(&a.MaxPlans),
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

// wholeNumber returns the parser of a word with a whole number of 1 or more.
func wholeNumber(to *int) func(*caddyfile.Dispenser) error {
	return func(d *caddyfile.Dispenser) error {
		word := d.Val()
		s, err := oneArg(d)
		if err != nil {
			return err
		}
		if *to, err = strconv.Atoi(s); err != nil || *to < 1 {
			return d.Errf("%s: want a whole number of 1 or more, got %q", word, s)
		}
		return nil
	}
}

func (a *App) unmarshalRetention(d *caddyfile.Dispenser) error {
	s, err := oneArg(d)
	if err != nil {
		return err
	}
	v, err := caddy.ParseDuration(s)
	if err != nil || v <= 0 {
		return d.Errf("history_retention: want a duration like 30d, got %q", s)
	}
	a.HistoryRetention = caddy.Duration(v)
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
	err := words{parse: map[string]func(*caddyfile.Dispenser) error{
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
	return words{parse: map[string]func(*caddyfile.Dispenser) error{
		"durability": func(d *caddyfile.Dispenser) (err error) {
			b.Durability, err = oneOf(d, "process", "power")
			return err
		},
		"min_free":    func(d *caddyfile.Dispenser) error { return unmarshalSize(d, &b.MinFree, badgerstore.MinMinFree) },
		"max_history": func(d *caddyfile.Dispenser) error { return unmarshalSize(d, &b.MaxHistory, minMaxHistory) },
	}}.block(d, "store badger")
}

// unmarshalSize parses the argument of a word: a size with a unit, at least least bytes.
func unmarshalSize(d *caddyfile.Dispenser, to *int64, least uint64) error {
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

// UnmarshalCaddyfile implements [caddyfile.Unmarshaler]:
//
//	limitkeeper_api [<matcher>] {
//		dashboard off|on
//	}
func (a *API) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	d.Next() // the directive's name
	if d.NextArg() {
		return d.ArgErr()
	}
	return words{parse: map[string]func(*caddyfile.Dispenser) error{
		"dashboard": func(d *caddyfile.Dispenser) error {
			s, err := oneOf(d, "off", "on")
			on := s == "on"
			a.Dashboard = &on
			return err
		},
	}}.block(d, apiDirective)
}

// UnmarshalCaddyfile implements [caddyfile.Unmarshaler]:
//
//	limitkeeper [<matcher>] {
//		account <name>
//		key header <name> | bearer | query <name> | cookie <name>
//		keep_key
//		cost [<meter>] <n|placeholder>
//		request_id header <name>
//		on_store_error deny|allow
//		observe
//		errors
//		headers all|x-ratelimit|ietf|none
//	}
func (g *Gateway) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	d.Next() // the directive's name
	if d.NextArg() {
		return d.ArgErr()
	}
	flag := func(b *bool) func(*caddyfile.Dispenser) error {
		return func(d *caddyfile.Dispenser) error {
			*b = true
			return noArgs(d)
		}
	}
	return words{
		parse: map[string]func(*caddyfile.Dispenser) error{
			"account":    g.unmarshalAccount,
			"key":        g.unmarshalKey,
			"keep_key":   flag(&g.KeepKey),
			"cost":       g.unmarshalCost,
			"request_id": g.unmarshalRequestID,
			"on_store_error": func(d *caddyfile.Dispenser) (err error) {
				g.OnStoreError, err = oneOf(d, onStoreErrorDeny, onStoreErrorAllow)
				return err
			},
			"observe": flag(&g.Observe),
			"errors":  flag(&g.Errors),
			"headers": func(d *caddyfile.Dispenser) (err error) {
				g.Headers, err = oneOf(d, "all", "x-ratelimit", "ietf", "none")
				return err
			},
		},
		repeatable: map[string]bool{"key": true, "cost": true},
	}.block(d, "the directive "+appName)
}

func (g *Gateway) unmarshalAccount(d *caddyfile.Dispenser) (err error) {
	g.Account, err = oneArg(d)
	return err
}

func (g *Gateway) unmarshalKey(d *caddyfile.Dispenser) error {
	args := d.RemainingArgs()
	if len(args) == 0 || len(args) > 2 {
		return d.Errf("key: want one place on a line: header <name>, bearer, query <name> or cookie <name>; got %d words", len(args))
	}
	s := KeySource{In: args[0]}
	if len(args) == 2 {
		s.Name = args[1]
	}
	if err := s.check(); err != nil {
		return d.WrapErr(err)
	}
	for _, have := range g.Keys {
		if have.normal() == s.normal() {
			return d.Errf("key %s is given twice", strings.Join(args, " "))
		}
	}
	g.Keys = append(g.Keys, s)
	return noBlock(d)
}

// unmarshalCost parses "cost <n>" and "cost <meter> <n>", which may stand once for each meter.
func (g *Gateway) unmarshalCost(d *caddyfile.Dispenser) error {
	args := d.RemainingArgs()
	if len(args) == 1 {
		args = []string{core.MeterRequests, args[0]}
	}
	if len(args) != 2 {
		return d.ArgErr()
	}
	meter, text := args[0], args[1]
	if _, err := newCostOption(meter, text); err != nil {
		return d.WrapErr(err)
	}
	_, twice := g.Costs[meter]
	switch {
	case twice, meter == core.MeterRequests && g.Cost != "":
		return d.Errf("the cost of %s is given twice", meter)
	case meter == core.MeterRequests:
		g.Cost = caddyhttp.WeakString(text)
	default:
		if g.Costs == nil {
			g.Costs = map[string]caddyhttp.WeakString{}
		}
		g.Costs[meter] = caddyhttp.WeakString(text)
	}
	return noBlock(d)
}

func (g *Gateway) unmarshalRequestID(d *caddyfile.Dispenser) error {
	args := d.RemainingArgs()
	if len(args) == 0 || len(args) > 2 {
		return d.ArgErr()
	}
	g.RequestID = &RequestIDSource{In: args[0]}
	if len(args) == 2 {
		g.RequestID.Name = args[1]
	}
	if err := g.RequestID.check(); err != nil {
		return d.WrapErr(err)
	}
	return noBlock(d)
}

// oneArg returns the only argument of a word, which must not be empty.
func oneArg(d *caddyfile.Dispenser) (string, error) {
	var s string
	if !d.AllArgs(&s) || s == "" {
		return "", d.ArgErr()
	}
	return s, noBlock(d)
}

// oneOf returns the only argument of a word, which must be one of the choices.
func oneOf(d *caddyfile.Dispenser, choices ...string) (string, error) {
	word := d.Val()
	s, err := oneArg(d)
	if err != nil {
		return "", err
	}
	for _, c := range choices {
		if s == c {
			return s, nil
		}
	}
	return "", d.Errf("%s: want %s, got %q", word, strings.Join(choices, " or "), s)
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
	_ caddyfile.Unmarshaler = (*App)(nil)
	_ caddyfile.Unmarshaler = (*BadgerStore)(nil)
	_ caddyfile.Unmarshaler = (*API)(nil)
	_ caddyfile.Unmarshaler = (*Gateway)(nil)
)
