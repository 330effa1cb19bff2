package apply

import (
	"encoding/hex"
	"fmt"
	"slices"
	"strings"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/document"
	"github.com/limitkeeper/limitkeeper/core/secrets"
	"github.com/limitkeeper/limitkeeper/internal/nearest"
)

// File is the content of a file: what some accounts should have.
type File struct {
	accounts []*account
	broken   Problems // the rules of core that objects of the file break, whatever the accounts have
}

// withBroken returns the problems of a file, nil without any. If there are problems it adds the broken rules: a run stops at the first
// problem of a user, and does not reach the rules of its keys.
func (f *File) withBroken(p *Problems) error {
	if p.Total > 0 {
		for _, b := range f.broken.First {
			p.add(b.Line, b.Path, b.Text)
		}
		p.Total += f.broken.Total - len(f.broken.First)
	}
	return p.err()
}

// account is the wanted state of one account.
type account struct {
	position
	name      string // "" if the file does not name it
	keyPrefix core.Optional[string]
	rules     []core.PriceRule // of prices
	webhooks  []*webhook
	plans     []*plan
	users     []*user

	hasPrices, hasWebhooks, hasPlans, hasUsers bool // the file has the member
	brokenPrices                               bool // the file has an invalid price
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
	f := &File{}
	r := &reader{&Problems{}, &f.broken}
	if v := parse(data, r.Problems); v != nil {
		r.file(v, f)
	}
	if err := f.withBroken(r.Problems); err != nil {
		return nil, err
	}
	return f, nil
}

// reader reads the objects of a file, and collects the problems.
type reader struct {
	*Problems
	broken *Problems // see [File]
}

func (r *reader) report(line int, path, text string) {
	switch text {
	case document.WantText: // YAML reads 12 and yes without quotation marks as other values
		text += "; put it in quotation marks"
	case document.WantWhole: // 010 is another number to some readers of YAML
		text += " in decimal digits"
	}
	r.add(line, path, text)
}

type object struct {
	*document.Object
	r *reader
}

// object returns an object, nil after adding a problem.
func (r *reader) object(v *document.Value, path string) *object {
	if o := document.NewObject(v, path, "Must be an object with members", r.report); o != nil {
		return &object{o, r}
	}
	return nil
}

func (o *object) position() position { return position{o.Line, o.Path, o.Lines()} }

func (r *reader) file(v *document.Value, f *File) {
	defer func() { uniqueDigests(r, f.accounts) }()
	o := r.object(v, "")
	if o == nil {
		return
	}
	if !o.Has("accounts") {
		f.accounts = []*account{o.account()}
		return
	}
	each(o, "accounts", func(o *object) {
		f.accounts = append(f.accounts, o.account())
	})
	for _, name := range accountMembers {
		if o.Take(name) != nil {
			o.Wrong(name, "Must not stand beside accounts: put it into an item of accounts")
		}
	}
	o.end("accounts")
	unique(r, f.accounts, "accounts", func(a *account) (*position, []named) { return &a.position, []named{{"account", a.name}} })
	for _, a := range f.accounts {
		if a.name == "" {
			r.addAt(a.position, "", "The member account is missing: it names the account")
		}
	}
}

// each calls read with the objects in a list, and reports whether the member exists.
func each(o *object, name string, read func(*object)) bool {
	v := o.Take(name)
	if v == nil {
		return false
	}
	if v.Kind != '[' && v.Kind != 0 {
		o.Wrong(name, "Must be a list")
	}
	v.Open()
	for i := range v.Items {
		if one := o.r.object(&v.Items[i], fmt.Sprintf("%s[%d]", document.Join(o.Path, name), i)); one != nil {
			read(one)
		}
	}
	return true
}

// unique refuses the second item with a name. of returns the position of an item, and its names for comparison.
func unique[T any](r *reader, items []T, what string, of func(T) (*position, []named)) {
	first := map[named]*position{}
	for _, item := range items {
		at, names := of(item)
		for _, n := range names {
			if n.value == "" {
				continue
			}
			if other, twice := first[n]; twice {
				r.addAt(*at, n.member, "Two of the %s have the %s %q: the other is in line %d",
					what, n.member, n.value, other.lineOf(n.member))
				continue
			}
			first[n] = at
		}
	}
}

// named is a member that names an item, and its value, "" for none.
type named struct{ member, value string }

func (o *object) account() *account {
	a := &account{position: o.position()}
	if name := o.Text("account"); name != nil {
		a.name = strings.TrimSpace(*name)
	}
	a.keyPrefix = o.optionalText("key_prefix")
	a.hasPrices = each(o, "prices", func(o *object) {
		before := o.r.Total
		r := o.PriceRule()
		if o.end(ruleMembers...); o.r.Total > before {
			a.brokenPrices = true
		} else if err := r.Check(); err != nil {
			a.brokenPrices = true
			_ = o.r.broken.refuse(o.position(), err) // a rule has no other cause than the file
		}
		a.rules = append(a.rules, r)
	})
	a.hasWebhooks = each(o, "webhooks", func(o *object) { a.webhooks = append(a.webhooks, o.webhook()) })
	a.hasPlans = each(o, "plans", func(o *object) { a.plans = append(a.plans, o.plan()) })
	a.hasUsers = each(o, "users", func(o *object) { a.users = append(a.users, o.user()) })
	o.end(accountMembers...)
	unique(o.r, a.plans, "plans", func(p *plan) (*position, []named) { return &p.position, []named{{"name", p.name}} })
	unique(o.r, a.webhooks, "webhooks", func(w *webhook) (*position, []named) { return &w.position, []named{{"url", w.url}} })
	unique(o.r, a.users, "users", func(u *user) (*position, []named) {
		names := []named{{"external_id", u.patch.ExternalID.OrZero()}, {"email", u.email()}}
		if member, value := u.identity(); member == "name" {
			names = append(names, named{member, value})
		}
		return &u.position, names
	})
	return a
}

func (o *object) optionalText(name string) core.Optional[string] {
	v, ok := o.Member(name, core.TypeText, true)
	if !ok || v == nil {
		return core.Optional[string]{Set: ok}
	}
	return core.Some(v.(string))
}

// readPatch reads the members of a resource, with their texts trimmed, and records the rules that they break.
func readPatch[R, P any](o *object, of *core.Members[R, P], p *P, except ...string) {
	document.Read(o.Object, of, p, except...)
	for _, err := range of.Errors(*p) {
		_ = o.r.broken.refuse(o.position(), err) // a rule has no other cause than the file
	}
}

// name returns a required name, trimmed, "" after adding a problem.
func (o *object) name(p *string) string {
	if p == nil {
		if !o.Has("name") {
			o.Wrong("name", "Name is required")
		}
		return ""
	}
	*p = strings.TrimSpace(*p)
	return *p
}

func (o *object) plan() *plan {
	p := &plan{position: o.position()}
	readPatch(o, &core.PlanMembers, &p.patch)
	p.name = o.name(p.patch.Name)
	o.end(planMembers...)
	return p
}

func (o *object) user() *user {
	u := &user{position: o.position(), plan: o.optionalText("plan")}
	readPatch(o, &core.UserMembers, &u.patch, "plan_id")
	for _, text := range []*string{u.patch.Name, u.patch.ExternalID.Value} {
		if text != nil {
			*text = strings.TrimSpace(*text)
		}
	}
	u.hasKeys = each(o, "keys", func(o *object) { u.keys = append(u.keys, o.key()) })
	p := u.patch
	wrong := p.Name == nil && o.Has("name") || !p.ExternalID.Set && o.Has("external_id") || !p.Email.Set && o.Has("email")
	if _, name := u.identity(); name == "" && !wrong {
		o.r.add(o.Line, o.Path, "A user needs an external_id, an email or a name")
	}
	o.end(userMembers...)
	unique(o.r, u.keys, "keys", func(k *key) (*position, []named) { return &k.position, []named{{"name", k.name}} })
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

// uniqueDigests refuses the second key of all accounts with a digest.
func uniqueDigests(r *reader, accounts []*account) {
	var keys []*key
	for _, a := range accounts {
		for _, u := range a.users {
			keys = append(keys, u.keys...)
		}
	}
	unique(r, keys, "keys", func(k *key) (*position, []named) {
		if k.patch.Digest == nil {
			return &k.position, nil
		}
		return &k.position, []named{{digestMember, hex.EncodeToString(k.patch.Digest[:])}}
	})
}

const digestMember = "key_sha256"

func (o *object) key() *key {
	k := &key{position: o.position(), plan: o.optionalText("plan")}
	readPatch(o, &core.KeyMembers, &k.patch, "plan_id", "user_id")
	k.name = o.name(k.patch.Name)
	if v := o.Take(digestMember); v != nil && v.Kind != 0 {
		d, ok := secrets.ParseDigest(v.Text) // YAML reads some digests without quotation marks as numbers
		if k.patch.Digest = &d; !ok {
			k.patch.Digest = nil
			o.Wrong(digestMember, "Must be the SHA-256 of the value of the key, as 64 hexadecimal digits or in base64")
		}
	}
	o.end(keyMembers...)
	return k
}

// The names of the members of each object of a file.
var (
	accountMembers = []string{"account", "key_prefix", "prices", "webhooks", "plans", "users"}
	ruleMembers    = []string{"endpoint", "model", "costs"}
	webhookMembers = namesOf(&core.WebhookMembers)
	planMembers    = namesOf(&core.PlanMembers)
	userMembers    = append(namesOf(&core.UserMembers), "plan", "keys")
	keyMembers     = append(namesOf(&core.KeyMembers), "plan", digestMember)
)

// namesOf returns the names of members in a file. A plan is named by its name, and a key stands in its user.
func namesOf[R, P any](of *core.Members[R, P]) (names []string) {
	for i := range of.List {
		if name := of.List[i].Name; name != "plan_id" && name != "user_id" {
			names = append(names, name)
		}
	}
	return names
}

// end refuses the members that are not known, and says what their author probably meant.
func (o *object) end(known ...string) {
	o.Object.End(func(name string) string {
		if (name == "key" || name == "api_key") && slices.Contains(known, digestMember) {
			return ": a file has no values of keys. Give the SHA-256 of the value as " + digestMember
		}
		var of []string
		for what, members := range map[string][]string{"an account": accountMembers, "a price": ruleMembers, "a webhook": webhookMembers, "a plan": planMembers, "a user": userMembers, "a key": keyMembers} {
			if slices.Contains(members, name) {
				of = append(of, what)
			}
		}
		if len(of) == 1 {
			return ": it is a member of " + of[0] + ", so check the indentation"
		}
		return nearest.Hint(name, known)
	})
}
