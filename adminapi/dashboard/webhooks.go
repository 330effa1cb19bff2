package dashboard

import (
	"context"
	"net/http"
	"strings"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/service"
)

func webhooksPage(q *request) error {
	hooks, pg, err := listed(q, func(p core.Page) ([]*core.Webhook, int, error) { return q.svc.Webhooks(q.r.Context(), q.account(), p) })
	if err != nil {
		return err
	}
	return q.render(http.StatusOK, "webhooks", "Webhooks", listView{Rows: hooks, Pager: pg})
}

// webhookView is the page of a webhook.
type webhookView struct {
	*core.Webhook
	Wanted   []string   // the types of events, without their prefix
	Former   *time.Time // the former secret also signs until then; nil for none
	Attempts []*core.Attempt
	Test     form // the zero form if the role lacks the permission
}

func webhookPage(q *request, w *core.Webhook) error {
	v := webhookView{Webhook: w}
	for _, t := range w.Events {
		v.Wanted = append(v.Wanted, strings.TrimPrefix(t, "limitkeeper."))
	}
	for _, s := range w.Secrets {
		if s.Until != nil && q.svc.Now().Before(*s.Until) {
			v.Former = s.Until
		}
	}
	var err error
	if v.Attempts, _, err = q.svc.Attempts(q.r.Context(), q.account(), w.ID, core.Page{Number: 1, Size: core.MaxAttempts}); err != nil {
		return err
	}
	if q.may(core.PermitEdit) {
		v.Test = q.form("webhooks/"+w.ID+"/test", "Send a test", "")
	}
	return q.render(http.StatusOK, "webhook", w.URL, v)
}

var webhookKind = &kind[string, core.Webhook, core.WebhookPatch]{
	noun:    "webhook",
	note:    "A webhook that is disabled loses the events that wait for it. One that is enabled again gets later events.",
	members: &core.WebhookMembers,
	first:   map[string]string{"is_active": "true"},
	special: []field{
		{Name: "url", Label: "URL", Type: "url", Required: true, Autofocus: true, Placeholder: "https://example.com/limitkeeper", Hint: "Gets a POST for each event."},
		{Name: "events", Label: "Events", Type: "textarea", Hint: "One on each line. Empty for all but " + core.EventUsage + ": " + strings.Join(core.EventTypes(), ", ") + "."},
		{Name: "description", Label: "Description", Hint: "What the webhook is for. Only the people of the account see it."},
		{Name: "is_active", Label: "Status", Type: "radio", Options: []option{{"true", "Active", ""}, {"false", "Disabled", "It gets no events."}}},
	},
	find: findWebhook,
	of:   func(w *core.Webhook) (id, name string, updated time.Time) { return w.ID, w.URL, w.UpdatedAt },
	create: func(s *service.Service, ctx context.Context, account string, p core.WebhookPatch) (w *core.Webhook, secret string, err error) {
		if w, err = s.CreateWebhook(ctx, account, p); err == nil {
			secret = string(w.Secrets[0].Value)
		}
		return w, secret, err
	},
	update:  (*service.Service).UpdateWebhook,
	remove:  (*service.Service).DeleteWebhook,
	missing: core.ErrWebhookNotFound,
	signs:   true,
	losses: func(*request, *core.Webhook) ([]string, bool, error) {
		return []string{"It cannot be taken back.", "The events that wait for it are not delivered.", "Its delivery log is deleted."}, false, nil
	},
}

func findWebhook(q *request) (*core.Webhook, error) {
	return q.svc.Webhook(q.r.Context(), q.account(), q.r.PathValue("id"))
}

var webhookRotation = formPage[*core.Webhook]{
	view: func(q *request, w *core.Webhook) (formView, error) {
		f := q.form("webhooks/"+w.ID+"/rotate", "Replace the secret", "webhooks/"+w.ID)
		return formView{Title: "Replace the secret?", Form: f, Points: []string{"You get a new secret. It is shown once.", "For 24 hours, each delivery is signed with the old secret, too.",
			"Put the new secret into your receiver within this time."}}, nil
	},
	send: func(q *request, w *core.Webhook) error {
		w, err := q.svc.RotateWebhook(q.r.Context(), q.account(), w.ID)
		if err != nil {
			return err
		}
		return q.showSecret(newSecret{What: "secret", Name: w.URL, Secret: string(w.Secrets[0].Value), Signs: true, Back: href("webhooks", w.ID),
			Say: "For 24 hours, the old secret signs each delivery, too."})
	},
}

// testWebhook sends a test. The delivery log of the page shows the result.
func testWebhook(q *request, w *core.Webhook) error {
	a, err := q.s.config.TestWebhook(q.r.Context(), q.account(), w.ID)
	if err != nil {
		return err
	}
	done := "tested"
	if a.Problem != "" {
		done = "untested"
	}
	return q.redirect("webhooks/" + w.ID + "?done=" + done)
}
