package adminapi

import (
	"net/http"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/service"
)

func ofWebhook(h func(c *call, id string) error) handler { return ofID(core.ErrWebhookNotFound, h) }

func viewWebhook(w *core.Webhook) object { return webhookWith(nil, w) }

// viewNewSecret shows a webhook with its secret: only after its creation and after a rotation.
func viewNewSecret(w *core.Webhook) object {
	return webhookWith(object{{"secret", string(w.Secrets[0].Value)}}, w)
}

func webhookWith(more object, w *core.Webhook) object {
	o := view(append(object{{"id", w.ID}}, more...), &core.WebhookMembers, w)
	return append(o, field{"disabled_reason", orNull(w.DisabledReason)}, field{"disabled_at", w.DisabledAt}, field{"failing_since", w.FailingSince},
		field{"dropped", w.Dropped}).and(w.CreatedAt, w.UpdatedAt)
}

// webhookAnswers are the members of an answer that the body of an update may have. They change nothing.
var webhookAnswers = []string{"id", "secret", "disabled_reason", "disabled_at", "failing_since", "dropped", "created_at", "updated_at"}

func listWebhooks(c *call) error {
	return list(c, c.query(), viewWebhook, func(p core.Page) ([]*core.Webhook, int, error) { return c.svc.Webhooks(c.ctx(), c.account, p) })
}

// rotateWebhook gives a webhook a new secret. The body has no members.
func rotateWebhook(c *call, id string) error {
	if _, err := decode(c, func(*members) struct{} { return struct{}{} }); err != nil {
		return err
	}
	w, err := c.svc.RotateWebhook(c.ctx(), c.account, id)
	return reply(viewNewSecret)(c, http.StatusOK, w, err)
}

// testWebhook sends a test, and answers with its result. A failed test is not an error of the request.
func testWebhook(c *call, id string) error {
	if _, err := decode(c, func(*members) struct{} { return struct{}{} }); err != nil {
		return err
	}
	a, err := c.config.TestWebhook(c.ctx(), c.account, id)
	return reply(viewAttempt)(c, http.StatusOK, a, err)
}

func viewAttempt(a *core.Attempt) object {
	return object{{"event_id", a.EventID}, {"type", a.Type}, {"at", a.At}, {"attempt", a.Attempt}, {"success", a.Problem == ""}, {"status", orNull(a.Status)},
		{"error", orNull(a.Problem)}, {"duration_ms", a.Millis}, {"given_up", a.GivenUp}, {"next_attempt_at", orNull(a.NextTime)}}
}

var deliveries = listOf(ofWebhook, (*service.Service).Webhook, viewAttempt, func(c *call, id string, p core.Page) ([]*core.Attempt, int, error) {
	return c.svc.Attempts(c.ctx(), c.account, id, p)
})
