package core

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"unicode/utf8"
)

// The bounds of restrictions.
const (
	MaxScopes            = 32
	maxAllowed           = 64      // endpoints, and addresses
	maxRestrictionsBytes = 4 << 10 // of the restrictions of a key as JSON: the key cache has them
)

// Restrictions say what a key may do. They are shared between copies of a key: do not change them.
type Restrictions struct {
	Scopes    []string `json:"scopes,omitzero"`            // names of what the key may do; nil: everything
	Endpoints []string `json:"allowed_endpoints,omitzero"` // patterns, such as "GET /v1/items*"; nil: every endpoint
	IPs       []string `json:"allowed_ips,omitzero"`       // addresses and blocks of addresses (CIDR); nil: every address
	OwnLimits

	Guard *Guard `json:"-"` // see Compiled; nil without endpoints and addresses
}

// Guard is the form of endpoints and addresses that a decision reads. A nil list allows all.
type Guard struct {
	endpoints []endpointPattern
	networks  []netip.Prefix
}

// Need is what a request needs: it is compared with the restrictions of its key and the features of its plan.
type Need struct {
	Method   string
	Path     string // as the upstream gets it, with its escapes
	IP       string // of the user, "" if it is unknown
	Scopes   []string
	Features []string
}

// compile returns the guard of the restrictions, and an error if they are invalid.
func (r *Restrictions) compile() (*Guard, error) {
	g := new(Guard)
	if problem := scopesProblem(r.Scopes); problem != "" {
		return nil, Invalid("scopes", problem)
	}
	if err := r.OwnLimits.check(); err != nil {
		return nil, err
	}
	for _, list := range []struct {
		name, label string
		texts       []string
		add         func(text string) (problem string)
	}{{"allowed_endpoints", "Allowed endpoints", r.Endpoints, g.addEndpoint}, {"allowed_ips", "Allowed IPs", r.IPs, g.addNetwork}} {
		if list.texts != nil && (len(list.texts) == 0 || len(list.texts) > maxAllowed) {
			return nil, Invalid(list.name, fmt.Sprintf("%s must be 1 to %d, or null to allow all", list.label, maxAllowed))
		}
		for i, text := range list.texts {
			if problem := list.add(text); problem != "" {
				return nil, Invalid(list.name, fmt.Sprintf("%s[%d] %s", list.label, i, problem))
			}
		}
	}
	if text, err := json.Marshal(r); err != nil || len(text) > maxRestrictionsBytes {
		return nil, Invalid("allowed_endpoints", "The restrictions of a key must be at most 4 KiB of JSON together: use fewer or shorter patterns")
	}
	return g, nil
}

// Compiled returns the scopes, the limits and the guard of restrictions, without the texts of endpoints and addresses; nil for nil. Invalid
// restrictions allow nothing.
func (r *Restrictions) Compiled() *Restrictions {
	if r == nil {
		return nil
	}
	g, err := r.compile()
	if err != nil {
		return &Restrictions{Scopes: []string{}, Guard: &Guard{[]endpointPattern{}, []netip.Prefix{}}}
	}
	c := &struct { // one allocation for most keys: for a decision, each further one is a likely cache miss
		Restrictions
		scopes [2]string
		limits [1]Limit
	}{Restrictions: Restrictions{OwnLimits: OwnLimits{Rate: r.Rate, Concurrency: r.Concurrency}}}
	if r.Scopes != nil {
		c.Scopes = append(c.scopes[:0], r.Scopes...)
	}
	if len(r.Limits) > 0 {
		c.Limits = append(c.limits[:0], r.Limits...)
	}
	for i, scope := range c.Scopes {
		c.Scopes[i] = Intern(scope)
	}
	for i := range c.Limits {
		c.Limits[i].Meter = Intern(c.Limits[i].Meter) // then [Counter] compares pointers
	}
	if g.endpoints != nil || g.networks != nil {
		c.Guard = g
	}
	return &c.Restrictions
}

func (g *Guard) addEndpoint(text string) (problem string) {
	p, problem := parseEndpoint(text)
	g.endpoints = append(g.endpoints, p)
	return problem
}

func (g *Guard) addNetwork(text string) (problem string) {
	network, err := netip.ParsePrefix(text)
	if err != nil {
		var a netip.Addr
		if a, err = netip.ParseAddr(text); err == nil && a.Zone() == "" {
			network = netip.PrefixFrom(a, a.BitLen())
		}
	}
	switch {
	case !network.IsValid() || network.Addr().Is4In6():
		return "must be an address or a block of addresses, such as 192.0.2.7, 192.0.2.0/24 or 2001:db8::/32"
	case network != network.Masked():
		return fmt.Sprintf("has bits after its prefix: write %v", network.Masked())
	}
	g.networks = append(g.networks, network)
	return ""
}

var scopeForm = regexp.MustCompile(`^[a-z0-9][a-z0-9:._-]{0,63}$`)

// scopesProblem returns what is wrong with names of scopes, "" for nothing.
func scopesProblem(scopes []string) string {
	switch {
	case len(scopes) > MaxScopes:
		return fmt.Sprintf("Scopes must be at most %d", MaxScopes)
	case slices.ContainsFunc(scopes, func(s string) bool { return !scopeForm.MatchString(s) }):
		return "Each scope must be 1 to 64 of a-z 0-9 : . _ - and begin with a letter or a digit"
	}
	return ""
}

// CheckNeed returns an error with the code INVALID_REQUEST if the scopes or features that a request needs are invalid.
func CheckNeed(scopes, features []string) error {
	if problem := scopesProblem(scopes); problem != "" {
		return BadRequest("scopes", problem)
	}
	if len(features) > maxFeatures || slices.ContainsFunc(features, func(f string) bool { return f == "" || utf8.RuneCountInString(f) > maxNameLength }) {
		return BadRequest("features", fmt.Sprintf("Features must be at most %d, each of 1 to %d characters", maxFeatures, maxNameLength))
	}
	return nil
}

// Refusal returns why compiled restrictions of a key, or the features of its plan, refuse a request; nil if they allow it.
func (r *Restrictions) Refusal(n *Need, features []string) *Error {
	if r != nil {
		if r.Scopes != nil {
			if missing := firstMissing(n.Scopes, r.Scopes); missing != "" {
				return restricted("scopes", "The API key lacks the scope "+missing)
			}
		}
		if err := r.Guard.refusal(n); err != nil {
			return err
		}
	}
	if missing := firstMissing(n.Features, features); missing != "" {
		return restricted("features", "The plan lacks the feature "+missing)
	}
	return nil
}

func restricted(field, message string) *Error {
	return &Error{Code: CodeKeyRestricted, Reason: ReasonRestricted, Message: message, Field: field}
}

// firstMissing returns the first text that a list lacks, "" for none.
func firstMissing(texts, list []string) string {
	for _, text := range texts {
		if !slices.Contains(list, text) {
			return text
		}
	}
	return ""
}

// refusal returns why the guard refuses a request, nil if it allows the request. A nil guard allows all.
func (g *Guard) refusal(n *Need) *Error {
	switch {
	case g == nil:
		return nil
	case g.endpoints != nil && !g.allowsEndpoint(n):
		return restricted("endpoint", "The API key may not use this endpoint")
	case g.networks == nil || g.allowsIP(n.IP):
		return nil
	case n.IP == "":
		return restricted("ip_address", "The API key is bound to addresses, and the address of the user is unknown")
	}
	return restricted("ip_address", "The API key may not be used from this address")
}

func (g *Guard) allowsEndpoint(n *Need) bool {
	normal, ok := normalPath(n.Path)
	return ok && slices.ContainsFunc(g.endpoints, func(p endpointPattern) bool { return p.matches(n.Method, normal) })
}

// allowsIP reports whether an address is allowed. An unknown address and one with a zone are not.
func (g *Guard) allowsIP(text string) bool {
	a, err := netip.ParseAddr(text)
	return err == nil && slices.ContainsFunc(g.networks, func(network netip.Prefix) bool { return network.Contains(a.Unmap()) })
}

// restriction describes one list of the restrictions of a key. of returns where restrictions have it.
func restriction(name string, in func(*KeyPatch) *Optional[[]string], of func(*Restrictions) *[]string) Member[Key, KeyPatch] {
	get := func(k *Key) *[]string {
		if k.Restrictions == nil || *of(k.Restrictions) == nil {
			return nil
		}
		return of(k.Restrictions)
	}
	return nullable(name, TypeTexts, in, get, restrict(func(r *Restrictions, v *[]string) {
		if *of(r) = nil; v != nil {
			*of(r) = append([]string{}, *v...)
		}
	}))
}

// restrict returns the set of a member of restrictions, which are shared between copies of a key: set changes a copy.
func restrict[T any](set func(*Restrictions, T)) func(*Key, T) error {
	return unchecked(func(k *Key, v T) {
		changed := new(Restrictions)
		if k.Restrictions != nil {
			*changed = *k.Restrictions
		}
		set(changed, v)
		if k.Restrictions = changed; changed.Scopes == nil && changed.Endpoints == nil && changed.IPs == nil &&
			len(changed.Limits) == 0 && changed.Rate == nil && changed.Concurrency == 0 {
			k.Restrictions = nil
		}
	})
}

// setConcurrency sets the concurrency of a key alone.
func setConcurrency(k *Key, n int64) {
	_ = restrict(func(r *Restrictions, n int64) { r.Concurrency = n })(k, n) // it has no rule
}

// checkRestrictions returns an error unless the restrictions of the key are valid.
func (k *Key) checkRestrictions() error {
	if k.Restrictions == nil {
		return nil
	}
	_, err := k.Restrictions.compile()
	return err
}
