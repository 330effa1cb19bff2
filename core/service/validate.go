package service

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/secrets"
)

// Outcome is the result of a decision.
type Outcome string

// The outcomes, in the order in which they are checked.
const (
	Malformed       Outcome = "malformed"   // the secret does not have the form of a key
	Unknown         Outcome = "unknown"     // no key of the account has the secret
	Expired         Outcome = "expired"     // the key has expired
	Disabled        Outcome = "disabled"    // the key is inactive or its user disabled
	Restricted      Outcome = "restricted"  // the key or its plan does not allow such a request
	Denied          Outcome = "denied"      // the request does not fit into the quota
	OverRate        Outcome = "rate"        // the request is over the rate of the plan or of the key
	OverConcurrency Outcome = "concurrency" // too many holds are open for the concurrency of the plan or of the key
	Allowed         Outcome = "allowed"     // the request was counted
)

// Decision says whether a request is allowed and how much of the quota is left.
type Decision struct {
	Outcome Outcome
	Account string    // the id of the account that asked
	At      time.Time // the time of the decision, by the clock of the service

	// Key and User are nil if the key was malformed or unknown. Plan is nil unless the quota was
	// read. They are shared: do not change them. They lack email
	// and description, and the restrictions of the key are compiled. Key is nil for a user that its external id identifies.
	Key  *core.Key
	User *core.User
	Plan *core.Plan

	// LimitUsage is the limit that decided, with the usage in its window after the decision. Limits are all limits, the primary
	// one first; nil if there is only that one.
	core.LimitUsage
	Limits []core.LimitUsage

	// Repeated says that the request was counted before, with the same id. Plan, LimitUsage and Limits are then
	// from the first decision, and Plan has only its id, name, limits and period.
	Repeated bool

	HoldID string // of the hold that the request has opened, or the request that it repeats; "" for none

	// Features are the features of the plan in force, nil unless the plan was read. They are shared: do not change them.
	Features []string

	// Cost is the cost on the meter requests that the request or its price sets. It is 0 unless the quota was read.
	Cost int64

	// Needed is the cost of a denied request on the meter of the limit that decided, 0 of any other request.
	Needed int64

	// UnknownMeter is a meter of the request that no limit and no price of the account names, "" for none.
	UnknownMeter string

	// NotMade is why no user was made for an external id, nil for any other decision.
	NotMade error

	restriction *core.Error // with the outcome Restricted

	// With the outcome OverRate, RetryAfter is the time until the rate allows a request. With OverRate and OverConcurrency, RefusedBy is the owner
	// of the rate or concurrency: the plan or the key.
	RetryAfter time.Duration
	RefusedBy  core.Origin
}

// OwnRate returns the rate of the key alone, nil for none.
func (d *Decision) OwnRate() *core.Rate {
	if d.Key == nil || d.Repeated {
		return nil
	}
	return d.Key.Own().Rate
}

// Allowed reports whether the request may pass.
func (d *Decision) Allowed() bool { return d.Outcome == Allowed }

// NeverFits reports whether the request is denied because it costs more than the whole limit: to wait does not help.
func (d *Decision) NeverFits() bool { return d.Outcome == Denied && d.Needed > d.Max }

// HasUsage reports whether the quota was read. Otherwise Plan and Usage are unset.
func (d *Decision) HasUsage() bool { return d.Plan != nil }

// Remaining returns the rest of the limit that decided, at least 0.
func (d *Decision) Remaining() int64 { return d.Limit.Remaining(d.Used) }

// Refusal returns the reason to show to the caller, nil if the request is allowed.
func (d *Decision) Refusal() *core.Error {
	if d.Outcome == Restricted {
		return d.restriction
	}
	return refusals[d.Outcome]
}

var refusals = map[Outcome]*core.Error{
	Malformed:       {Code: core.CodeInvalidAPIKey, Reason: core.ReasonMalformed, Message: "Invalid API key"},
	Unknown:         {Code: core.CodeAPIKeyNotFound, Reason: core.ReasonUnknown, Message: "API key not found"},
	Expired:         {Code: core.CodeInvalidAPIKey, Reason: core.ReasonExpired, Message: "API key has expired"},
	Disabled:        {Code: core.CodeAPIKeyDisabled, Reason: core.ReasonDisabled, Message: "API key is disabled"},
	Denied:          {Reason: core.ReasonQuota, Message: "Rate limit exceeded"},
	OverRate:        {Reason: core.ReasonRate, Message: "Too many requests"},
	OverConcurrency: {Reason: core.ReasonConcurrency, Message: "Too many requests at once"},
}

// Validate decides a request of a user of the account, and counts it if it is allowed. An error
// means that no decision was made: [core.ErrUnavailable] if the store cannot be reached.
func (s *Service) Validate(ctx context.Context, account string, r Request) (Decision, error) {
	d := s.pendingDecisions.Get().(*pendingDecision)
	defer s.pendingDecisions.Put(d)
	if r.RequestID != "" && r.Secret != "" && strings.Contains(r.RequestID, r.Secret) { // also an imported key, whose form tells nothing
		return Decision{}, errSecretRequestID
	}
	now := s.clock()
	err := errStaleRead
	for try := 0; try <= maxStaleReads && errors.Is(err, errStaleRead); try++ {
		d.Decision = Decision{Account: account, At: now}
		err = s.decide(ctx, d, &r)
	}
	s.hits.add(d.stripe, d.hits)
	d.hits = 0
	if err != nil {
		return Decision{}, err
	}
	s.onDecision(&d.Decision)
	return d.Decision, nil
}

// pendingDecision is a decision in progress. A pool reuses it: the store and OnDecision get
// pointers into it, and it would otherwise be allocated for each request.
type pendingDecision struct {
	Decision
	consumption core.Consumption
	special     bool   // see cachedUser.special
	hits        uint64 // look-ups of keys, users and plans answered from memory
	stripe      int    // of Service.hits
}

// errStaleRead means that a key, its user and its plan were read at different times and do not fit
// together. They are then read again, at most maxStaleReads times. While another client moves keys between users
// as fast as the store allows, one read in four is stale.
var errStaleRead = errors.New("key, user and plan changed while they were read")

const maxStaleReads = 30

// decide makes one attempt at a decision.
func (s *Service) decide(ctx context.Context, d *pendingDecision, r *Request) error {
	var k *cachedKey
	var u *cachedUser
	var err error
	if r.External != "" {
		u, err = s.identifyUser(ctx, d, r)
	} else {
		k, u, err = s.identify(ctx, d, r.Secret)
	}
	switch {
	case err != nil:
		return err
	case d.Outcome == Disabled:
		s.recordRefusal(d, k, r, core.ReasonDisabled)
	case d.Outcome == Expired:
		s.recordRefusal(d, k, r, core.ReasonExpired)
	case d.Outcome == Restricted && u != nil:
		s.recordRefusal(d, k, r, core.ReasonRestricted)
	case d.Outcome == "":
		return s.consume(ctx, d, k, u, r)
	}
	return nil
}

// recordRefusal records a request that is refused without a look at its quota. The decision does not depend on the
// record, so errors of the store are ignored.
func (s *Service) recordRefusal(d *pendingDecision, k *cachedKey, r *Request, reason core.Reason) {
	c := s.newConsumption(d, k, r)
	c.Shared, c.Refused, c.RequestID = k == nil || k.PlanID == "", reason, strings.Clone(r.RequestID)
	_, _ = s.store.Consume(context.Background(), c)
}

// newConsumption returns the consumption of a request without terms and price. It reuses that of d: a literal would be
// made on the stack and copied, which takes 30 ns longer.
func (s *Service) newConsumption(d *pendingDecision, k *cachedKey, r *Request) *core.Consumption {
	c := &d.consumption
	*c = core.Consumption{}
	c.Account, c.UserID = d.Account, d.User.ID
	if k != nil {
		c.KeyID, c.KeySeq = k.ID, k.Seq
	}
	if c.Cost, c.Retention = r.Cost, s.retention(); r.CostByPrice {
		c.Cost = 1
	}
	c.Entry.KeyID, c.Entry.UserID = c.KeyID, c.UserID
	d.fill(&c.Entry, r)
	c.Entry.Cost = c.Cost
	return c
}

// fill sets the members of the history entry of a request: bounded, and without any text that looks like a secret.
func (d *pendingDecision) fill(e *core.Entry, r *Request) {
	e.At = d.At.UTC().Truncate(historyGranularity)
	e.Endpoint = secrets.Sanitize(r.mask(r.Endpoint), core.MaxEntryEndpoint)
	e.Method = secrets.Sanitize(r.mask(r.Method), core.MaxEntryMethod)
	e.IP = secrets.Sanitize(r.mask(cmp.Or(r.IP, r.CallerIP)), core.MaxEntryAddress)
}

// identify finds the key and the user of a secret. It sets the outcome if the request is refused
// before its quota is read.
func (s *Service) identify(ctx context.Context, d *pendingDecision, secret string) (*cachedKey, *cachedUser, error) {
	if ok, err := s.WellFormedKey(ctx, d.Account, secret); !ok || err != nil {
		if err == nil {
			d.Outcome = Malformed
		}
		return nil, nil, err
	}
	digest := secrets.DigestOf(secret)
	k, u, disabled, err := s.resolve(ctx, d, digest)
	if errors.Is(err, core.ErrKeyNotFound) || errors.Is(err, core.ErrUserNotFound) {
		d.Outcome = Unknown
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, err
	}
	if k.AccountID != d.Account || !k.Accepts(digest, d.At) {
		d.Outcome = Unknown
		return nil, nil, nil
	}
	d.Key = &k.Key
	if u != nil { // u is never nil. With the check, the compiler does not read *u here, which would be a likely cache miss.
		d.User = &u.User
	}
	switch {
	case k.Expired(d.At):
		d.Outcome = Expired
	case k.Status != core.KeyActive || disabled:
		d.Outcome = Disabled
	}
	return k, u, nil
}

// resolve returns the key with the digest and its user, and whether the user is disabled.
func (s *Service) resolve(ctx context.Context, d *pendingDecision, digest secrets.Digest) (*cachedKey, *cachedUser, bool, error) {
	k, err := s.keys.find(ctx, digest, &d.hits)
	if err != nil {
		return nil, nil, false, err
	}
	if u, special := k.user.get(s.users); u != nil {
		d.hits++
		d.special = special
		return k, u, false, nil
	}
	ref := userRef{k.AccountID, k.UserID}
	u, err := s.users.find(ctx, ref, &d.hits)
	if err != nil {
		return nil, nil, false, err
	}
	if u.Disabled {
		return k, u, true, nil
	}
	d.special = u.special()
	k.user.set(s.users, ref, u, d.special)
	return k, u, false, nil
}

// consume counts the request under the plan of the key, or of its user.
func (s *Service) consume(ctx context.Context, d *pendingDecision, k *cachedKey, u *cachedUser, r *Request) error {
	pl, shared, err := s.planInForce(ctx, d, k, u)
	if errors.Is(err, core.ErrPlanNotFound) {
		return s.staleRead(d, err)
	}
	if err != nil {
		return err
	}
	d.Features = pl.Features
	if d.restriction = r.restriction(k, &pl.Plan); d.restriction != nil {
		d.Outcome = Restricted
		s.recordRefusal(d, k, r, core.ReasonRestricted)
		return nil
	}
	c := s.newConsumption(d, k, r)
	if c.Shared, c.Terms = shared, pl.Terms(); k != nil {
		c.Own = k.Own()
	}
	if d.special { // most users are not read at all: a likely cache miss
		c.Anchors = u.Anchors
		c.Override(u.Overrides, d.At)
	}
	unknown, err := s.price(ctx, pl, r, c)
	if d.UnknownMeter = unknown; err == nil && unknown != "" && !r.IgnoreUnknownMeters {
		err = core.BadRequest("costs."+unknown, "No limit and no price of the account names this meter: correct its name, or give a plan a limit of it")
	}
	if err != nil {
		return err
	}
	d.Cost = c.Cost
	c.RequestID = strings.Clone(r.RequestID)           // a store keeps it, and it may be a part of a long body
	v, err := s.store.Consume(context.Background(), c) // a count that has begun is finished
	if errors.Is(err, core.ErrKeyNotFound) || errors.Is(err, core.ErrUserNotFound) {
		return s.staleRead(d, err)
	}
	if err != nil {
		if errors.Is(err, core.ErrUnavailable) { // the request may be counted, and its repetition ranks nothing
			s.addDue(c.Account, c.UserID, c.KeyID, c.Shared)
		}
		return err
	}
	d.setResult(&pl.Plan, &v)
	recorded := &u.recorded
	if k != nil {
		recorded = &k.recorded
	}
	s.rankDecision(c, &v, recorded)
	s.addresses.record(c, &recorded.address)
	return nil
}

// planInForce returns the plan that limits the key, and whether it is the plan of the user.
func (s *Service) planInForce(ctx context.Context, d *pendingDecision, k *cachedKey, u *cachedUser) (*cachedPlan, bool, error) {
	if k != nil && k.PlanID != "" {
		pl, err := k.plan.getOrFind(ctx, s.plans, planRef{k.AccountID, k.PlanID}, &d.hits)
		return pl, false, err
	}
	pl, err := u.plan.getOrFind(ctx, s.plans, planRef{u.AccountID, u.PlanID}, &d.hits)
	return pl, true, err
}

// staleRead removes the key and the user from the cache, and returns errStaleRead: a resource that
// they refer to is missing.
func (s *Service) staleRead(d *pendingDecision, err error) error {
	if d.Key != nil {
		s.keys.forget(d.Key.Digests()...)
	}
	s.users.forget(userRef{d.Account, d.User.ID})
	return fmt.Errorf("user %d: %w: %v", d.User.ID, errStaleRead, err)
}

// setResult sets the result of the store under a plan, or under the terms of the first decision.
func (d *pendingDecision) setResult(pl *core.Plan, v *core.ConsumeResult) {
	terms := &d.consumption.Terms
	d.Plan, d.Outcome, d.RetryAfter, d.RefusedBy, d.HoldID = pl, Denied, v.RetryAfter, v.RefusedBy, v.HoldID
	switch {
	case v.Allowed:
		d.Outcome = Allowed
	case v.Reason == core.ReasonRate:
		d.Outcome = OverRate
	case v.Reason == core.ReasonConcurrency:
		d.Outcome = OverConcurrency
	}
	if first := v.FirstTerms; first != nil {
		d.Repeated, terms = true, first
		d.Plan = &core.Plan{AccountID: d.Account, ID: first.PlanID, Name: first.PlanName, Limit: first.Limit, Period: first.Period, Limits: first.Further}
	}
	d.LimitUsage = core.LimitUsage{Limit: terms.LimitAt(v.Deciding), Of: terms.OriginAt(v.Deciding), Usage: v.Usage}
	if d.Outcome == Denied {
		d.Needed = d.consumption.CostOn(d.Limit.Meter)
	}
	if d.Limits = v.Limits; len(d.Limits) > 0 && terms.Limit == core.Unlimited {
		d.Limits = d.Limits[1:]
	}
}
