package apply

import (
	"context"
	"errors"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/service"
)

// webhook is an entry of the list webhooks. Its URL identifies it.
type webhook struct {
	position
	url   string
	patch core.WebhookPatch
}

// NewWebhook is a new webhook with its secret, which is shown only once.
type NewWebhook struct {
	ID     string `json:"id"`
	URL    string `json:"url"`
	Secret string `json:"secret"`
}

func (o *object) webhook() *webhook {
	w := &webhook{position: o.position()}
	readPatch(o, &core.WebhookMembers, &w.patch)
	if w.patch.URL != nil {
		w.url = *w.patch.URL
	} else if !o.Has("url") {
		o.Wrong("url", "URL is required")
	}
	o.end(webhookMembers...)
	return w
}

// readWebhooks reads the webhooks of an account.
func readWebhooks(ctx context.Context, svc *service.Service, account string) (list []*core.Webhook, err error) {
	list, _, err = svc.Webhooks(ctx, account, core.Page{Number: 1, Size: core.MaxWebhooks})
	return list, err
}

func (c *comparison) matchWebhooks() {
	stored := map[string][]*core.Webhook{}
	for _, w := range c.current.webhooks {
		stored[w.URL] = append(stored[w.URL], w)
	}
	for _, w := range c.file.webhooks {
		if found := unambiguous(c, &w.position, "webhook", w.url, stored[w.url], func(w *core.Webhook) string { return w.ID }); found != nil {
			c.hookOf[w] = found
			c.matched[found.ID] = true
		}
	}
}

// webhookSteps returns the steps of the webhooks. The webhooks that the file lacks are deleted first, because an account has at most core.MaxWebhooks.
func (c *comparison) webhookSteps() (steps []*step) {
	if c.prune && c.file.hasWebhooks {
		for _, w := range c.current.webhooks {
			if !c.matched[w.ID] {
				steps = append(steps, deletion(Change{Kind: "webhook", Name: w.URL}, func() error {
					if err := c.sameWebhook(w); err != nil {
						return err
					}
					return c.DeleteWebhook(w.ID)
				}))
			}
		}
	}
	for _, w := range c.file.webhooks {
		steps = append(steps, c.webhookStep(w))
	}
	return steps
}

func (c *comparison) webhookStep(w *webhook) *step {
	was := c.hookOf[w]
	return &step{w.position, func() (*Change, error) {
		if was == nil {
			made, err := c.CreateWebhook(w.patch)
			if err != nil {
				return nil, err
			}
			c.hooks = append(c.hooks, NewWebhook{made.ID, made.URL, string(made.Secrets[0].Value)})
			return &Change{Action: "create", Kind: "webhook", Name: w.url}, nil
		}
		if !core.WebhookMembers.Changes(w.patch, was) {
			return nil, nil
		}
		if err := c.sameWebhook(was); err != nil {
			return nil, err
		}
		after, err := c.UpdateWebhook(was.ID, w.patch)
		if err != nil {
			return nil, err
		}
		return (&Change{Kind: "webhook", Name: w.url}).update(differences(&core.WebhookMembers, was, after, nil)), nil
	}}
}

// sameWebhook returns errStale unless a webhook is as it was read.
func (c *comparison) sameWebhook(w *core.Webhook) error {
	now, err := c.Webhook(w.ID)
	switch {
	case errors.Is(err, core.ErrWebhookNotFound):
		return errStale
	case err != nil:
		return err
	case !now.UpdatedAt.Equal(w.UpdatedAt) || now.Inactive != w.Inactive: // failed deliveries disable a webhook without another UpdatedAt
		return errStale
	}
	return nil
}

// endDeliveries ends the deliveries of the webhooks that the changes have disabled or deleted.
func (c *comparison) endDeliveries(ctx context.Context) error {
	var ids []string
	for _, w := range c.current.webhooks {
		ids = append(ids, w.ID)
	}
	return c.svc.EndUnwanted(ctx, c.account.ID, ids...)
}
