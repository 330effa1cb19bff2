package service

import (
	"cmp"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/dunglas/httpsfv"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/secrets"
)

// Request is a request of a user, before the decision.
type Request struct {
	Secret   string // the value of the key; "" for a request that External identifies
	Endpoint string // the path, for the history; also for the restrictions of the key and the price if Path is ""
	Method   string // the HTTP method
	IP       string // the address of the user, for the history; "" if unknown
	CallerIP string // for the history if the address of the user is unknown; "" if unknown
	Path     string // the path as the upstream gets it, with its escapes, for the restrictions of the key and the price

	// External is the external id of the user, whom another program has authenticated, in place of a key. The counter of the user decides.
	External string

	// PlanName is the plan of a user that the first request with its external id makes. With "" such a request is unknown.
	PlanName string

	// Scopes and Features are what the request needs of its key and of its plan. Check bounds them.
	Scopes, Features []string

	Cost int64 // 0…MaxCost; 0, without Costs and Later, checks the quota without using it, whatever the price is

	// CostByPrice says that the request gives no Cost: the price sets the cost on the meter requests, 1 without a price.
	CostByPrice bool

	// Costs are the costs on other meters, sorted by name: each 0…MaxMeterCost, at most MaxCosts. They override the price of the
	// request, meter by meter. The store may keep the list: do not change it.
	Costs []core.MeterCost

	// Later lists the meters that the request names with the cost 0 and that are charged afterwards, sorted. Each limit of such a
	// meter must have something left.
	Later []string

	// AnyModel says that the model of the answer prices the request in the end. Unless a price names the model of the request, each meter that
	// some model charges afterwards must have something left.
	AnyModel bool

	Model string          // for the price; "" if it is unknown
	Usage core.Quantities // for the price; nil while it is unknown

	// HoldFor, if not 0, opens a hold on the costs, for so long. OnExpiry says what happens to it then. InFlight does the same if the plan or the key
	// has a concurrency.
	HoldFor, InFlight time.Duration
	OnExpiry          core.OnExpiry

	// IgnoreUnknownMeters says that a meter which no limit and no price of the account names costs nothing. Otherwise it is an error.
	IgnoreUnknownMeters bool

	// RequestID is the name that the caller gives to the request, "" for none. Requests of one key
	// with the same id count once within RequestIDRetention: a repeat gets the first answer again.
	RequestID string
}

// named returns Costs, and the other meters of Later with the cost 0. The meter requests is left out: every account has it.
func (r *Request) named() []core.MeterCost {
	if len(r.Later) == 0 {
		return r.Costs
	}
	costs := slices.Clone(r.Costs)
	for _, meter := range r.Later {
		if meter != core.MeterRequests {
			costs = append(costs, core.MeterCost{Meter: meter})
		}
	}
	return costs
}

// Check returns an [core.Error] with the code INVALID_REQUEST for the first member that is missing or
// out of bounds.
func (r *Request) Check() error {
	switch {
	case r.Secret == "":
		return core.BadRequest("api_key", "API key is required")
	case len(r.IP) > maxAddressLength:
		return core.BadRequest("ip_address", "IP address must be at most 128 bytes long")
	}
	if err := checkTarget(r.Endpoint, r.Method); err != nil {
		return err
	}
	if err := core.CheckCost(r.Cost); err != nil {
		return err
	}
	if err := (&core.PricedRequest{Model: r.Model, Usage: r.Usage}).Check(); err != nil {
		return err
	}
	if err := core.CheckNeed(r.Scopes, r.Features); err != nil {
		return err
	}
	if err := core.CheckCosts(r.Costs); err != nil || r.RequestID == "" {
		return err
	}
	return checkRequestID(r.RequestID)
}

// looks reports whether the request says that it costs nothing at all.
func (r *Request) looks() bool {
	return r.Cost == 0 && !r.CostByPrice && len(r.Costs)+len(r.Later) == 0 && r.HoldFor == 0
}

// pricedPath returns the path that prices and restrictions are compared with.
func (r *Request) pricedPath() string { return cmp.Or(r.Path, r.Endpoint) }

// checkTarget returns an error with the code INVALID_REQUEST unless an endpoint and a method are there and within their bounds.
func checkTarget(endpoint, method string) error {
	switch {
	case endpoint == "":
		return core.BadRequest("endpoint", "Endpoint is required")
	case len(endpoint) > maxEndpointLength:
		return core.BadRequest("endpoint", "Endpoint must be at most 2048 bytes long")
	case method == "":
		return core.BadRequest("method", "Method is required")
	case len(method) > maxMethodLength:
		return core.BadRequest("method", "Method must be at most 32 bytes long")
	}
	return nil
}

// MaxRequestIDText bounds a request id that is written as a quoted string, in bytes: each byte of the id may be escaped.
const MaxRequestIDText = 2*core.MaxRequestIDLength + 2

// ParseRequestID returns the request id that a client wrote: the text itself, or the value of a quoted string. So `"a"` and
// `a` are one id: draft-ietf-httpapi-idempotency-key-header-07 writes ids as the strings of RFC 9651 section 3.3.3, and
// most clients write them without quotes. A text that only begins like a quoted string is the id itself. The error is an
// [core.Error] with the code INVALID_REQUEST: the id is empty, too long, not UTF-8, an API key, or has control characters.
func ParseRequestID(text string) (string, error) {
	if strings.HasPrefix(text, `"`) && len(text) <= MaxRequestIDText {
		item, err := httpsfv.UnmarshalItem([]string{text})
		if id, ok := item.Value.(string); ok && err == nil {
			text = id
		}
	}
	if err := checkRequestID(text); err != nil {
		return "", err
	}
	return text, nil
}

var errSecretRequestID = core.BadRequest("request_id", "Request ID must not be an API key")

// checkRequestID returns an error if a request id is invalid. Ids are stored unmasked, so an id must not be a secret
// either.
func checkRequestID(id string) error {
	switch {
	case id == "" || len(id) > core.MaxRequestIDLength:
		return core.BadRequest("request_id", "Request ID must be 1 to 128 bytes long")
	case !utf8.ValidString(id):
		return core.BadRequest("request_id", "Request ID must be valid UTF-8")
	case strings.ContainsFunc(id, unicode.IsControl):
		return core.BadRequest("request_id", "Request ID must not hold control characters")
	case secrets.HoldsSecret(id):
		return errSecretRequestID
	}
	return nil
}

// mask returns a text without copies of the key of the request. An imported key may have any form; [secrets.MaskSecrets] masks a key
// with the default prefix.
func (r *Request) mask(s string) string {
	if r.Secret == "" || len(s) < len(r.Secret) || strings.HasPrefix(r.Secret, secrets.DefaultKeyPrefix) {
		return s
	}
	return secrets.ReplaceSecret(s, r.Secret, "***")
}

// restriction returns why a key or its plan does not allow the request, nil if both do. A user without a key has a nil key.
func (r *Request) restriction(k *cachedKey, pl *core.Plan) *core.Error {
	if k.restrictions() == nil && r.Features == nil {
		return nil
	}
	need := core.Need{Method: r.Method, Path: r.pricedPath(), IP: r.IP, Scopes: r.Scopes, Features: r.Features}
	return k.restrictions().Refusal(&need, pl.Features)
}
