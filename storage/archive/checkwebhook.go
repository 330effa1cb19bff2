package archive

import (
	"github.com/limitkeeper/limitkeeper/core"
)

func (c *checker) putWebhook(w *core.Webhook) {
	switch {
	case !c.belongs(w.AccountID):
		return
	case !isID(w.ID) || w.Seq <= c.webhookSeq || w.Seq > maxNumber:
		c.problem("webhook %.70s: webhooks have an id, and are sorted by seq, each once", w.ID)
	case c.webhooks[w.ID]:
		c.problem("webhook %s: a second one with this id", w.ID)
	case len(c.webhooks) >= core.MaxWebhooks:
		c.problem("webhook %s: an account has at most %d webhooks", w.ID, core.MaxWebhooks)
	}
	c.rules("webhook", w.ID, w.Check())
	c.notAhead("webhook", w.CreatedAt)
	c.notAhead("webhook", w.UpdatedAt)
	c.webhooks[w.ID], c.webhookSeq = true, max(c.webhookSeq, w.Seq)
}

func (c *checker) putWebhookEvent(e *WebhookEvent) {
	switch {
	case !c.belongs(e.AccountID):
		return
	case e.Seq <= c.eventSeq || e.Seq > maxNumber:
		c.problem("webhook_event %.70s: the events are sorted by seq, each once", e.ID)
	case c.events[e.ID]:
		c.problem("webhook_event %.70s: a second one with this id", e.ID)
	}
	c.rules("webhook_event", e.ID, e.Check())
	c.notAhead("webhook_event", e.At)
	waits := map[string]bool{}
	for _, d := range e.Deliveries {
		if !isID(d.Webhook) || waits[d.Webhook] || d.Attempts < 0 {
			c.problem("webhook_event %.70s: each of its deliveries has the id of another webhook, and a number of attempts", e.ID)
		}
		waits[d.Webhook] = true
	}
	c.events[e.ID], c.eventSeq = true, max(c.eventSeq, e.Seq)
}
