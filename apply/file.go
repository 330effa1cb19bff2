package apply

import (
	"cmp"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/limitkeeper/limitkeeper/core"
)

// File is the content of a file: what some accounts should have.
type File struct {
	accounts []*account
	broken   []brokenRule
}

// brokenRule is a rule of core that an object of a file breaks, whatever the account has.
type brokenRule struct {
	at  position
	err error
}

// withBroken returns the problems of a file, nil without any. If there are problems it adds the broken rules: a run stops at the first
// problem of a user, and does not reach the rules of its keys.
func (f *File) withBroken(p *Problems) error {
	if p.Total > 0 {
		for _, b := range f.broken {
			_ = p.refuse(b.at, b.err) // a rule has no other cause than the file
		}
	}
	return p.err()
}

// account is the wanted state of one account.
type account struct {
	position
	name      string // "" if the file does not name it
	keyPrefix core.Optional[string]
	plans     []*plan
	users     []*user

	hasPlans, hasUsers bool // the file has the member
}

type plan struct {
	position
	name  string
	patch core.PlanPatch
}

type user struct {
	position
	patch   core.UserPatch        // without PlanID
	plan    core.Optional[string] // by name
	keys    []*key
	hasKeys bool
}

type key struct {
	position
	name  string
	patch core.KeyPatch         // without PlanID and UserID
	plan  core.Optional[string] // by name
}

// Parse reads a file in YAML or JSON. The error is [*Problems], with all problems of the file.
func Parse(data []byte) (*File, error) {
	r := &reader{Problems: &Problems{}}
	f := &File{}
	if n := parseNode(data, r.Problems); n != nil {
		r.file(n, f)
	}
	f.broken = r.broken
	if err := f.withBroken(r.Problems); err != nil {
		return nil, err
	}
	return f, nil
}

func (r *reader) file(n *yaml.Node, f *File) {
	defer func() { uniqueDigests(r, f.accounts) }()
	o := r.object(n, "")
	if o == nil {
		return
	}
	if _, many := o.left["accounts"]; !many {
		f.accounts = []*account{o.account()}
		return
	}
	each(o, "accounts", func(o *object) {
		f.accounts = append(f.accounts, o.account())
	})
	for _, name := range []string{"account", "key_prefix", "plans", "users"} {
		if o.take(name) != nil {
			o.r.add(o.lineOf(name), name, "Must not stand beside accounts: put it into an item of accounts")
		}
	}
	o.end()
	unique(r, f.accounts, "accounts", func(a *account) (*position, string, string) { return &a.position, "account", a.name })
	for _, a := range f.accounts {
		if a.name == "" {
			r.add(a.line, a.path, "The member account is missing: it names the account")
		}
	}
}

// each calls read with the objects in a list, and reports whether the member exists.
func each(o *object, name string, read func(*object)) bool {
	n := o.take(name)
	if n == nil {
		return false
	}
	path := join(o.path, name)
	items, _ := o.r.list(n, path, "Must be a list")
	for i, item := range items {
		if one := o.r.object(item, fmt.Sprintf("%s[%d]", path, i)); one != nil {
			read(one)
			one.end()
		}
	}
	return true
}

// unique refuses the second item with a name. of returns the position of an item, the member with the name, and the name
// for comparison, "" for none.
func unique[T any](r *reader, items []T, what string, of func(T) (*position, string, string)) {
	first := map[string]*position{}
	for _, item := range items {
		at, member, name := of(item)
		if name == "" {
			continue
		}
		if other, twice := first[name]; twice {
			r.add(at.lineOf(member), join(at.path, member), fmt.Sprintf("Two of the %s have the %s %q: the other is in line %d", what, member, name, other.lineOf(member)))
			continue
		}
		first[name] = at
	}
}

// lineOf returns the line of a member, or of the object.
func (p *position) lineOf(member string) int {
	if line, ok := p.members[member]; ok {
		return line
	}
	return p.line
}

func (o *object) account() *account {
	a := &account{position: o.position}
	if name := o.text("account"); name != nil {
		a.name = strings.TrimSpace(*name)
	}
	a.keyPrefix = o.optionalText("key_prefix")
	a.hasPlans = each(o, "plans", func(o *object) { a.plans = append(a.plans, o.plan()) })
	a.hasUsers = each(o, "users", func(o *object) { a.users = append(a.users, o.user()) })
	o.end()
	unique(o.r, a.plans, "plans", func(p *plan) (*position, string, string) { return &p.position, "name", p.name })
	uniqueUsers(o.r, a.users)
	return a
}

func (o *object) text(name string) *string { return member(o, name, wantText, readText) }

func (o *object) optionalText(name string) core.Optional[string] {
	return optional(o, name, wantText, readText)
}

// requiredName returns the member name, trimmed; nil after adding a problem.
func (o *object) requiredName() *string {
	name := o.text("name")
	if name != nil {
		*name = strings.TrimSpace(*name)
	} else if !o.given("name") {
		o.r.add(o.line, join(o.path, "name"), "Name is required")
	}
	return name
}

func (o *object) plan() *plan {
	name := o.requiredName()
	p := &plan{position: o.position, name: *cmp.Or(name, new(""))}
	maximum := optional(o, "max_requests", wantWhole, readWhole)
	p.patch = core.PlanPatch{
		Name:        name,
		Description: o.optionalText("description"),
		Limit:       maximum.Value,
		Unlimited:   maximum.Set && maximum.Value == nil,
		Period:      o.text("request_period"),
		Limits:      optional(o, "limits", wantLimits, func(n *yaml.Node) ([]core.Limit, bool) { return o.limits(n), true }),
		Rate:        optional(o, "rate", wantRate, func(n *yaml.Node) (core.Rate, bool) { return o.rate(n), true }),
		Active:      member(o, "is_active", wantFlag, readFlag),
		Features:    optional(o, "features", wantTexts, o.r.texts),
	}
	all := p.patch
	primary := core.PlanPatch{Limit: all.Limit, Unlimited: all.Unlimited}
	check(o, core.PlanPatch.Check, all, core.PlanPatch{Name: all.Name}, primary, core.PlanPatch{Period: all.Period}, core.PlanPatch{Rate: all.Rate},
		core.PlanPatch{Limits: all.Limits}, core.PlanPatch{Limit: all.Limit, Period: all.Period, Limits: all.Limits}, core.PlanPatch{Description: all.Description}, core.PlanPatch{Features: all.Features})
	return p
}

// limits reads the member limits.
func (o *object) limits(n *yaml.Node) (limits []core.Limit) {
	path := join(o.path, "limits")
	items, _ := o.r.list(n, path, wantLimits)
	for i, item := range items {
		one := o.r.objectLike(item, fmt.Sprintf("%s[%d]", path, i), "Must be a limit, such as {meter: tokens, max: 1000, period: month}")
		if one == nil {
			continue
		}
		meter, most, period := one.text("meter"), member(one, "max", wantWhole, readWhole), one.text("period")
		one.end()
		if !one.given("meter") || !one.given("max") || !one.given("period") {
			one.r.add(one.line, one.path, "A limit has a meter, a max and a period")
		}
		if meter == nil || most == nil || period == nil {
			continue
		}
		p, err := core.ParsePeriod(*period)
		if err != nil {
			one.r.add(one.lineOf("period"), join(one.path, "period"), "The period of a limit must be one of minute, hour, day, week, month, year, lifetime")
		}
		limits = append(limits, core.Limit{Meter: *meter, Max: *most, Period: p})
	}
	return limits
}

// rate reads the member rate. Its burst is its requests unless it is given.
func (o *object) rate(n *yaml.Node) (rate core.Rate) {
	one := o.r.objectLike(n, join(o.path, "rate"), wantRate)
	if one == nil {
		return rate
	}
	requests, burst := member(one, "requests", wantWhole, readWhole), member(one, "burst", wantWhole, readWhole)
	per := one.text("per")
	one.end()
	if !one.given("requests") || !one.given("per") {
		one.r.add(one.line, one.path, wantRate)
	}
	if requests == nil || per == nil {
		return rate
	}
	rate = core.Rate{Requests: *requests, Per: core.RatePer(*per), Burst: *requests}
	if burst != nil {
		rate.Burst = *burst
	}
	return rate
}

// check records the rules of core that an object breaks. rule returns only the first error of a patch, so check calls it for each part, too:
// a patch of one member or a few.
func check[P any](o *object, rule func(P) error, whole P, parts ...P) {
	if rule(whole) == nil {
		return
	}
	for _, p := range append(parts, whole) {
		if err := rule(p); err != nil {
			o.r.broken = append(o.r.broken, brokenRule{o.position, err})
		}
	}
}

func (o *object) user() *user {
	u := &user{position: o.position, plan: o.optionalText("plan")}
	u.patch = core.UserPatch{
		Name:        o.text("name"),
		ExternalID:  o.optionalText("external_id"),
		Email:       o.optionalText("email"),
		Metadata:    o.json("metadata"),
		Disabled:    member(o, "is_disabled", wantFlag, readFlag),
		CustomStart: optional(o, "custom_start", wantStart, readStart),
	}
	for _, text := range []*string{u.patch.Name, u.patch.ExternalID.Value} {
		if text != nil {
			*text = strings.TrimSpace(*text)
		}
	}
	all := u.patch
	check(o, core.UserPatch.Check, all, core.UserPatch{Name: all.Name}, core.UserPatch{ExternalID: all.ExternalID}, core.UserPatch{Email: all.Email}, core.UserPatch{Metadata: all.Metadata})
	u.hasKeys = each(o, "keys", func(o *object) { u.keys = append(u.keys, o.key()) })
	p := u.patch
	wrong := p.Name == nil && o.given("name") || !p.ExternalID.Set && o.given("external_id") || !p.Email.Set && o.given("email")
	if _, name := u.identity(); name == "" && !wrong {
		o.r.add(o.line, o.path, "A user needs an external_id, an email or a name")
	}
	unique(o.r, u.keys, "keys", func(k *key) (*position, string, string) { return &k.position, "name", k.name })
	return u
}

// identity returns the member that identifies a user, and its value for comparison.
func (u *user) identity() (member, value string) {
	switch {
	case u.patch.ExternalID.Value != nil:
		return "external_id", *u.patch.ExternalID.Value
	case u.patch.Email.Value != nil:
		return "email", u.email()
	case u.patch.Name != nil:
		value = *u.patch.Name
	}
	return "name", value
}

// email returns the folded address, "" for none.
func (u *user) email() string { return core.FoldEmail(u.patch.Email.OrZero()) }

// uniqueUsers refuses the second user with an external id, with an email, or with a name that identifies it.
func uniqueUsers(r *reader, users []*user) {
	unique(r, users, "users", func(u *user) (*position, string, string) {
		return &u.position, "external_id", u.patch.ExternalID.OrZero()
	})
	unique(r, users, "users", func(u *user) (*position, string, string) { return &u.position, "email", u.email() })
	unique(r, users, "users", func(u *user) (*position, string, string) {
		member, value := u.identity()
		if member != "name" {
			value = ""
		}
		return &u.position, "name", value
	})
}

// uniqueDigests refuses the second key of all accounts with a digest.
func uniqueDigests(r *reader, accounts []*account) {
	var keys []*key
	for _, a := range accounts {
		for _, u := range a.users {
			keys = append(keys, u.keys...)
		}
	}
	unique(r, keys, "keys", func(k *key) (*position, string, string) {
		if k.patch.Digest == nil {
			return &k.position, digestMember, ""
		}
		return &k.position, digestMember, hex.EncodeToString(k.patch.Digest[:])
	})
}

const digestMember = "key_sha256"

func (o *object) key() *key {
	name := o.requiredName()
	k := &key{position: o.position, name: *cmp.Or(name, new("")), plan: o.optionalText("plan")}
	k.patch = core.KeyPatch{
		Name:      name,
		Status:    o.text("status"),
		ExpiresAt: optional(o, "expires_at", wantTime, readTime),
		Metadata:  o.json("metadata"),
		Digest:    member(o, digestMember, wantDigest, readDigest),
	}
	all := k.patch
	rule := func(p core.KeyPatch) error { return p.Check(time.Time{}) } // a key may have expired before
	check(o, rule, all, core.KeyPatch{Name: all.Name}, core.KeyPatch{Status: all.Status}, core.KeyPatch{Metadata: all.Metadata})
	return k
}

// readDigest reads a digest in hexadecimal digits or base64. YAML reads some digests without quotation marks as numbers.
func readDigest(n *yaml.Node) (d core.Digest, ok bool) {
	text := n.Value
	if d.UnmarshalText([]byte(text)) == nil {
		return d, true
	}
	encoding := base64.RawStdEncoding
	if strings.ContainsAny(text, "-_") {
		encoding = base64.RawURLEncoding
	}
	b, err := encoding.Strict().DecodeString(strings.TrimSuffix(text, "="))
	return core.Digest(append(b, make([]byte, len(d))...)[:len(d)]), err == nil && len(b) == len(d)
}
