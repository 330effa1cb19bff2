package core

import (
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/limitkeeper/limitkeeper/core/secrets"
)

// The bounds of webhooks.
const (
	MaxWebhooks       = 20             // of an account
	maxWebhookURL     = 2048           // bytes
	WebhookRotation   = 24 * time.Hour // how long a rotated secret signs beside the new one
	maxWebhookSecrets = 2              // of a webhook: a third rotation within WebhookRotation ends the oldest
)

// Webhook is a URL of an account that gets its events.
type Webhook struct {
	AccountID   string          `json:"account_id"`
	ID          string          `json:"id"`  // wh_…
	Seq         int64           `json:"seq"` // from 1, in the order of creation within the account
	URL         string          `json:"url"`
	Events      []string        `json:"events,omitempty"` // the types that the webhook wants, sorted; none: all but EventUsage
	Description *string         `json:"description,omitempty"`
	Secrets     []WebhookSecret `json:"secrets"` // the present one first
	Inactive    bool            `json:"inactive,omitempty"`

	DisabledReason string     `json:"disabled_reason,omitempty"` // why Limitkeeper has disabled the webhook; "" if it has not
	DisabledAt     *time.Time `json:"disabled_at,omitempty"`
	FailingSince   *time.Time `json:"failing_since,omitempty"` // the first failure since the last success
	Dropped        int64      `json:"dropped,omitempty"`       // events that were not delivered because too many waited

	CreatedAt time.Time `json:"created_at"`
	UpdatedAt time.Time `json:"updated_at"`
}

// WebhookSecret is a secret that signs the deliveries to a webhook.
type WebhookSecret struct {
	Value secrets.SigningSecret `json:"value"`
	Until *time.Time            `json:"until,omitempty"` // of a former secret: it signs before then
}

// WebhookPatch holds the members of a webhook to set. A nil pointer and an unset [Optional] leave the member alone.
type WebhookPatch struct {
	URL         *string
	Events      Optional[[]string]
	Description Optional[string]
	Active      *bool
}

// WebhookMembers describe webhooks.
var WebhookMembers = Members[Webhook, WebhookPatch]{
	List: []Member[Webhook, WebhookPatch]{
		plain("url", TypeText, func(p *WebhookPatch) **string { return &p.URL }, func(w *Webhook) string { return w.URL }, func(w *Webhook, v string) (err error) {
			w.URL, err = v, checkWebhookURL(v)
			return err
		}).required(),
		nullable("events", TypeTexts, func(p *WebhookPatch) *Optional[[]string] { return &p.Events }, func(w *Webhook) *[]string { return notNil(w.Events) },
			func(w *Webhook, v *[]string) (err error) {
				w.Events, err = cleanEventTypes(OrZero(v))
				return err
			}),
		nullable("description", TypeText, func(p *WebhookPatch) *Optional[string] { return &p.Description }, func(w *Webhook) *string { return w.Description },
			func(w *Webhook, v *string) error {
				if w.Description = v; v != nil && (utf8.RuneCountInString(*v) > maxNameLength || strings.ContainsFunc(*v, unicode.IsControl)) {
					return Invalid("description", "Description must be at most 255 characters long, without control characters")
				}
				return nil
			}),
		plain("is_active", TypeFlag, func(p *WebhookPatch) **bool { return &p.Active }, func(w *Webhook) bool { return !w.Inactive }, func(w *Webhook, v bool) error {
			if w.Inactive = !v; v {
				w.DisabledReason, w.DisabledAt, w.FailingSince = "", nil, nil
			}
			return nil
		}),
	},
	fresh: func() *Webhook { return &Webhook{} },
}

// checkWebhookURL returns an error unless a text is an absolute http or https URL without user and fragment.
func checkWebhookURL(text string) error {
	const field = "url"
	u, err := url.Parse(text)
	port := 0
	if err == nil && u.Port() != "" {
		port, err = strconv.Atoi(u.Port())
	}
	switch {
	case text == "":
		return Invalid(field, "URL is required")
	case len(text) > maxWebhookURL:
		return Invalid(field, fmt.Sprintf("URL must be at most %d bytes long", maxWebhookURL))
	case err != nil || strings.ContainsFunc(text, func(r rune) bool { return r <= ' ' || r == 0x7f }):
		return Invalid(field, "URL must be a valid URL, such as https://example.com/limitkeeper")
	case u.Scheme != "https" && u.Scheme != "http" || u.Hostname() == "":
		return Invalid(field, "URL must begin with https:// or http:// and a host")
	case u.User != nil:
		return Invalid(field, "URL must not have a user or a password: the receiver checks the signature instead")
	case u.Fragment != "" || strings.Contains(text, "#"):
		return Invalid(field, "URL must not have a fragment: a request has none")
	case port < 0 || port > 65535:
		return Invalid(field, "URL must have a port from 1 to 65535")
	}
	return nil
}

// CheckPublicURL returns an error if the host of a valid URL is localhost, or an address that is not public. A name may still resolve to such
// an address: the client checks each address that it connects to.
func CheckPublicURL(text string) error {
	u, err := url.Parse(text)
	if err != nil {
		return nil // another rule refuses the URL
	}
	host := strings.TrimSuffix(strings.ToLower(u.Hostname()), ".")
	a, err := netip.ParseAddr(host)
	if host == "localhost" || strings.HasSuffix(host, ".localhost") || err == nil && !IsPublic(a) {
		return Invalid("url", "URL must have a public address: the server sends nothing to private and loopback addresses, unless its configuration has webhook_allow_private")
	}
	return nil
}

// cleanEventTypes returns the types sorted and without duplicates.
func cleanEventTypes(types []string) ([]string, error) {
	if len(types) > 2*len(EventTypes()) {
		return nil, Invalid("events", fmt.Sprintf("Events must be at most %d", len(EventTypes())))
	}
	for _, t := range types {
		if !slices.Contains(EventTypes(), t) {
			return nil, Invalid("events", "Events must be some of "+strings.Join(EventTypes(), ", "))
		}
	}
	types = slices.Sorted(slices.Values(types))
	return slices.Compact(types), nil
}

// Check returns a validation error unless the members of a stored webhook are valid.
func (w *Webhook) Check() error {
	if len(w.Secrets) == 0 || len(w.Secrets) > maxWebhookSecrets {
		return Invalid("secrets", fmt.Sprintf("A webhook has 1 to %d secrets", maxWebhookSecrets))
	}
	if len(w.DisabledReason) > 1024 || w.Dropped < 0 {
		return Invalid("disabled_reason", "The reason must be at most 1024 bytes long, and dropped 0 or more")
	}
	for _, s := range w.Secrets {
		if !s.Value.WellFormed() {
			return Invalid("secrets", "A secret of a webhook is whsec_ and base64 of 24 to 64 bytes")
		}
	}
	return WebhookMembers.check(w)
}

// Wants reports whether the webhook wants events of a type. A webhook that names no types does not want [EventUsage]: these events are many.
func (w *Webhook) Wants(eventType string) bool {
	return len(w.Events) == 0 && eventType != EventUsage || slices.Contains(w.Events, eventType)
}

// Gets reports whether new events of a type wait for the webhook: it is active, and wants the type.
func (w *Webhook) Gets(eventType string) bool { return !w.Inactive && w.Wants(eventType) }

// Rotate gives the webhook a new secret. For WebhookRotation, the former secret signs each delivery, too.
func (w *Webhook) Rotate(s secrets.SigningSecret, now time.Time) {
	former := slices.DeleteFunc(w.Secrets, func(f WebhookSecret) bool { return f.Until != nil })
	for i := range former {
		former[i].Until = new(now.Add(WebhookRotation))
	}
	w.Secrets = append([]WebhookSecret{{Value: s}}, former...)
}

// Signing returns the secrets that sign a delivery at a time, the present one first.
func (w *Webhook) Signing(now time.Time) (list []secrets.SigningSecret) {
	for _, s := range w.Secrets {
		if s.Until == nil || now.Before(*s.Until) {
			list = append(list, s.Value)
		}
	}
	return list
}

// Disable disables the webhook for a reason that its owner sees.
func (w *Webhook) Disable(reason string, at time.Time) {
	w.Inactive, w.DisabledReason, w.DisabledAt = true, reason, &at
}
