package storetest

import (
	"fmt"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"pgregory.net/rapid"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/secrets"
)

// webhooksNow and eventsNow return the current webhooks and events of the account.
func (d *txPlan) webhooksNow() []*core.Webhook {
	ws, _, _ := d.model.Webhooks(d.e.ctx, d.account, core.Page{Number: 1, Size: 1000})
	return ws
}

func (d *txPlan) eventsNow() []*core.Event {
	es, _, _ := d.model.Events(d.e.ctx, d.account, core.EventFilter{}, 0, 1000)
	return es
}

// changeWebhooks writes or deletes a webhook, an event or an attempt.
func (d *txPlan) changeWebhooks() {
	switch rapid.IntRange(0, 9).Draw(d.t, "webhook") {
	case 0, 1:
		d.putWebhook()
	case 2, 3, 4, 5:
		d.putEvent()
	case 6, 7:
		d.putAttempt()
	case 8:
		if known := d.webhooksNow(); len(known) > 0 {
			d.deleteWebhook(rapid.SampledFrom(known).Draw(d.t, "webhook").ID)
		}
	case 9:
		if known := d.eventsNow(); len(known) > 0 {
			id := rapid.SampledFrom(known).Draw(d.t, "event").ID
			if d.touch("event %s", id) {
				d.write(func(tx core.Tx) (any, error) { return nil, tx.DeleteEvent(id) })
			}
		}
	}
}

// putWebhook writes a new webhook, or an existing one with other members.
func (d *txPlan) putWebhook() {
	w := &core.Webhook{AccountID: d.account, URL: "https://example.com/hook", Secrets: []core.WebhookSecret{{Value: "whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIz"}}}
	known := d.webhooksNow()
	switch {
	case len(known) > 0 && rapid.Bool().Draw(d.t, "known"):
		w = rapid.SampledFrom(known).Draw(d.t, "webhook")
		d.read(func(tx core.Tx) (any, error) { return tx.Webhook(w.ID) })
	case len(known) >= core.MaxWebhooks/2:
		return
	default:
		w.ID = d.newID(d.account, "wh_")
		d.hooks = append(d.hooks[max(0, len(d.hooks)-8):], w.ID)
	}
	if !d.touch("webhook %s", w.ID) {
		return
	}
	drawMembers(d.machine, d.t, &core.WebhookMembers, w)
	if rapid.Bool().Draw(d.t, "rotate") {
		w.Rotate(secrets.SigningSecret("whsec_"+secretText(d.next("secret"))), d.someNow())
	}
	w.FailingSince, w.Dropped, w.CreatedAt, w.UpdatedAt = nil, int64(d.serial), d.someNow(), d.someNow()
	if rapid.Bool().Draw(d.t, "fails") {
		w.FailingSince = new(d.someNow())
	}
	if w.Inactive {
		w.Disable(d.text(d.t, "the receiver has answered 410"), d.someNow())
	}
	d.read(func(tx core.Tx) (any, error) { return listed(tx.Webhooks(core.Page{Number: 1, Size: 2})) })
	d.write(func(tx core.Tx) (any, error) {
		given := copyOf(w)
		err := tx.PutWebhook(given)
		answer := given.Seq
		spoil(given)
		return answer, err
	})
}

// secretText returns 32 characters of base64 that end with a text.
func secretText(text string) string {
	const zeros = "00000000000000000000000000000000"
	return zeros[len(text):] + text
}

// putEvent writes a new event, or an existing one with other deliveries or with the next number.
func (d *txPlan) putEvent() {
	e := &core.Event{Type: core.EventThreshold}
	if known := d.eventsNow(); len(known) > 0 && rapid.Bool().Draw(d.t, "known") {
		e = rapid.SampledFrom(known).Draw(d.t, "event")
		if rapid.IntRange(0, 3).Draw(d.t, "again") == 0 {
			e.Seq = 0
		}
	} else {
		e.ID = d.newID(d.account, "evt_")
	}
	if !d.touch("event %s", e.ID) {
		return
	}
	e.Subject, e.At, e.Until = d.text(d.t, "key_1"), d.someNow(), d.now.AddDate(0, 0, rapid.IntRange(-1, 2).Draw(d.t, "until"))
	e.Data = jsontext.Value(rapid.SampledFrom([]string{"", `{"used":80}`, string(awkwardJSON)}).Draw(d.t, "data"))
	if len(e.Data) == 0 {
		e.Data = nil
	}
	e.Deliveries = nil
	for _, w := range d.webhooksNow() {
		if rapid.Bool().Draw(d.t, "pending") {
			e.Deliveries = append(e.Deliveries, core.Delivery{Webhook: w.ID, Attempts: rapid.IntRange(0, 2).Draw(d.t, "attempts"),
				Next: rapid.SampledFrom([]time.Time{{}, d.someNow()}).Draw(d.t, "next")})
		}
	}
	id := e.ID
	d.read(func(tx core.Tx) (any, error) { return tx.Events("evt_missing", id) })
	d.write(func(tx core.Tx) (any, error) {
		given := copyOf(e)
		err := tx.PutEvent(given)
		answer := given.Seq
		spoil(given)
		return answer, err
	})
}

// putAttempt writes an attempt, mostly in place of another one.
func (d *txPlan) putAttempt() {
	known := d.webhooksNow()
	if len(known) == 0 {
		return
	}
	w := rapid.SampledFrom(known).Draw(d.t, "webhook")
	a := &core.Attempt{ID: fmt.Sprintf("%s/%d", w.ID, rapid.IntRange(0, 3).Draw(d.t, "slot")), Webhook: w.ID, EventID: d.text(d.t, "evt_1"), Type: core.EventTest,
		At: d.someNow(), Attempt: 1 + d.serial%3, Status: 500 * (d.serial % 2), Problem: d.next("problem"), Millis: int64(d.serial)}
	if d.touched["webhook "+w.ID] || !d.touch("attempt %s", a.ID) {
		return
	}
	d.touched["the log of "+w.ID] = true
	d.read(func(tx core.Tx) (any, error) { return listed(tx.Attempts(w.ID, core.Page{Number: 1, Size: 2})) })
	d.write(func(tx core.Tx) (any, error) {
		given := copyOf(a)
		err := tx.PutAttempt(given)
		answer := given.Seq
		spoil(given)
		return answer, err
	})
}

// deleteWebhook deletes a webhook, unless the transaction writes to its log.
func (d *txPlan) deleteWebhook(id string) {
	if d.touched["the log of "+id] || !d.touch("webhook %s", id) {
		return
	}
	d.write(func(tx core.Tx) (any, error) { return nil, tx.DeleteWebhook(id) })
}

// lookWebhooks compares the webhooks of an account, their pending events and logs.
func (m *machine) lookWebhooks(t *rapid.T, account string, page core.Page) {
	m.both(t, "Webhooks", func(s core.Store) (any, error) { return listed(s.Webhooks(m.e.ctx, account, page)) })
	after := rapid.Int64Range(0, 12).Draw(t, "after")
	filters := []core.EventFilter{{}, {Pending: true}, {Until: core.DateOf(m.now)}, {Webhook: "wh_missing"}}
	for _, id := range m.hooks {
		filters = append(filters, core.EventFilter{Webhook: id})
		m.both(t, "Webhook", func(s core.Store) (any, error) { return s.Webhook(m.e.ctx, account, id) })
		m.both(t, "Attempts", func(s core.Store) (any, error) { return listed(s.Attempts(m.e.ctx, account, id, page)) })
	}
	for _, f := range filters {
		m.both(t, fmt.Sprintf("Events %+v", f), func(s core.Store) (any, error) { return listed(s.Events(m.e.ctx, account, f, after, page.Size)) })
	}
	m.both(t, "Event", func(s core.Store) (any, error) { return s.Event(m.e.ctx, account, fmt.Sprint("evt_", after*37%101)) })
}
