package command

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/limitkeeper/limitkeeper/caddymodule"
	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/service"
)

func accountWebhookCommand() *cobra.Command {
	const id = "wh_4fzT7rk2m9qxW8hcB1sD"
	cmd := &cobra.Command{Use: "webhook", Short: "Manages the webhooks of an account", RunE: needSubcommand, Example: "  limitkeeper account webhook list acme"}
	create := subcommand("create ACCOUNT URL", "Creates a webhook and prints the secret that verifies its deliveries",
		"limitkeeper account webhook create acme https://example.com/limitkeeper --events limitkeeper.threshold,limitkeeper.exhausted", runWebhookCreate)
	create.Flags().String("events", "", "The types of events that the webhook gets, with commas between them, such as threshold,usage. The default is all but limitkeeper.usage")
	create.Flags().String("description", "", "What the webhook is for, as lists show it")
	cmd.AddCommand(
		create,
		subcommand("list ACCOUNT", "Lists the webhooks of an account", "limitkeeper account webhook list acme", runWebhookList),
		subcommand("rotate ACCOUNT WEBHOOK", "Prints a new secret of a webhook; for 24 hours, the former one signs, too", "limitkeeper account webhook rotate acme "+id, runWebhookRotate),
		subcommand("test ACCOUNT WEBHOOK", "Sends a test to a webhook and prints the result", "limitkeeper account webhook test acme "+id, runWebhookTest),
		subcommand("enable ACCOUNT WEBHOOK", "Enables a webhook, which gets later events", "limitkeeper account webhook enable acme "+id, runWebhookSet(true)),
		subcommand("disable ACCOUNT WEBHOOK", "Disables a webhook, which loses the events that wait for it", "limitkeeper account webhook disable acme "+id, runWebhookSet(false)),
		subcommand("delete ACCOUNT WEBHOOK", "Deletes a webhook", "limitkeeper account webhook delete acme "+id, runWebhookDelete),
	)
	return cmd
}

func runWebhookCreate(c *adminClient, args []string) error {
	body := webhookBody{URL: &args[1]}
	if text := c.flags.String("events"); text != "" {
		body.Events = new([]string{})
		for _, name := range strings.Split(text, ",") { // a short name, as in the list, is accepted
			*body.Events = append(*body.Events, "limitkeeper."+strings.TrimPrefix(name, "limitkeeper."))
		}
	}
	if text := c.flags.String("description"); text != "" {
		body.Description = &text
	}
	var w webhookView
	if err := c.call(http.MethodPost, accountPath("webhooks", args[0], ""), body, &w); err != nil {
		return fmt.Errorf("creating a webhook of account %q: %w", args[0], err)
	}
	return c.printf("Webhook %s\nSecret  %s\nThe secret is shown this once.\n", w.ID, w.Secret)
}

func runWebhookList(c *adminClient, args []string) error {
	var ws []webhookView
	if err := c.call(http.MethodGet, accountPath("webhooks", args[0], ""), nil, &ws); err != nil {
		return fmt.Errorf("listing the webhooks of account %q: %w", args[0], err)
	}
	rows := [][]string{{"ID", "URL", "EVENTS", "STATUS", "DROPPED"}}
	for _, w := range ws {
		events := "all but usage"
		if len(w.Events) > 0 {
			events = strings.ReplaceAll(strings.Join(w.Events, ","), "limitkeeper.", "")
		}
		rows = append(rows, []string{w.ID, printable(w.URL), events, w.status(), strconv.FormatInt(w.Dropped, 10)})
	}
	return c.table(rows)
}

// status returns the state of a webhook for people.
func (w *webhookView) status() string {
	switch {
	case w.DisabledReason != "":
		return "disabled: " + printable(w.DisabledReason)
	case !w.Active:
		return "disabled"
	case w.FailingSince != nil:
		return "failing since " + shownTime(w.FailingSince)
	}
	return "active"
}

func runWebhookRotate(c *adminClient, args []string) error {
	var w webhookView
	if err := c.call(http.MethodPost, accountPath("webhooks/rotate", args[0], args[1]), nil, &w); err != nil {
		return fmt.Errorf("rotating the secret of webhook %s of account %q: %w", args[1], args[0], err)
	}
	return c.printf("Secret %s\nThe secret is shown this once. For 24 hours, the former one signs each delivery, too.\n", w.Secret)
}

func runWebhookTest(c *adminClient, args []string) error {
	var a attemptView
	if err := c.call(http.MethodPost, accountPath("webhooks/test", args[0], args[1]), nil, &a); err != nil {
		return fmt.Errorf("testing webhook %s of account %q: %w", args[1], args[0], err)
	}
	if a.Error != "" {
		return fmt.Errorf("testing webhook %s of account %q: %s", args[1], args[0], lowerFirst(a.Error))
	}
	return c.printf("The receiver has answered %d within %d ms.\n", a.Status, a.Millis)
}

func runWebhookSet(active bool) func(*adminClient, []string) error {
	return func(c *adminClient, args []string) error {
		verb := map[bool]string{true: "enabl", false: "disabl"}[active]
		var w webhookView
		if err := c.call(http.MethodPatch, accountPath("webhooks", args[0], args[1]), webhookBody{Active: &active}, &w); err != nil {
			return fmt.Errorf("%sing webhook %s of account %q: %w", verb, args[1], args[0], err)
		}
		return c.printf("Webhook %s is %sed.\n", w.ID, verb)
	}
}

func runWebhookDelete(c *adminClient, args []string) error {
	var w webhookView
	if err := c.call(http.MethodDelete, accountPath("webhooks", args[0], args[1]), nil, &w); err != nil {
		return fmt.Errorf("deleting webhook %s of account %q: %w", args[1], args[0], err)
	}
	return c.printf("Deleted webhook %s.\n", w.ID)
}

// webhookBody is the body of a request that creates or changes a webhook.
type webhookBody struct {
	URL         *string   `json:"url,omitempty"`
	Events      *[]string `json:"events,omitempty"`
	Description *string   `json:"description,omitempty"`
	Active      *bool     `json:"is_active,omitempty"`
}

func (b webhookBody) patch() core.WebhookPatch {
	p := core.WebhookPatch{URL: b.URL, Active: b.Active}
	if b.Events != nil {
		p.Events = core.Some(*b.Events)
	}
	if b.Description != nil {
		p.Description = core.Some(*b.Description)
	}
	return p
}

// webhookView is a webhook as the admin API and the commands show it.
type webhookView struct {
	ID             string     `json:"id"`
	Secret         string     `json:"secret,omitempty"` // only in the answers to its creation and to a rotation
	URL            string     `json:"url"`
	Events         []string   `json:"events"`
	Description    *string    `json:"description,omitempty"`
	Active         bool       `json:"is_active"`
	DisabledReason string     `json:"disabled_reason,omitempty"`
	FailingSince   *time.Time `json:"failing_since,omitempty"`
	Dropped        int64      `json:"dropped"`
}

func viewWebhook(w *core.Webhook) webhookView {
	return webhookView{ID: w.ID, URL: w.URL, Events: append([]string{}, w.Events...), Description: w.Description, Active: !w.Inactive, DisabledReason: w.DisabledReason,
		FailingSince: w.FailingSince, Dropped: w.Dropped}
}

// viewWebhookSecret shows a webhook with its present secret.
func viewWebhookSecret(w *core.Webhook) webhookView {
	v := viewWebhook(w)
	v.Secret = string(w.Secrets[0].Value)
	return v
}

// attemptView is the result of a test.
type attemptView struct {
	EventID string `json:"event_id"`
	Status  int    `json:"status,omitempty"`
	Error   string `json:"error,omitempty"`
	Millis  int64  `json:"duration_ms"`
}

func listWebhooks(s *service.Service, r *http.Request, account string) (any, error) {
	return viewAll(r.Context(), viewWebhook, func(p core.Page) ([]*core.Webhook, int, error) { return s.Webhooks(r.Context(), account, p) })
}

func createWebhook(s *service.Service, r *http.Request, account string) (any, error) {
	body, err := bodyOf[webhookBody](r, `{"url": …, "events": …, "description": …}`)
	if err != nil {
		return nil, err
	}
	return answer(viewWebhookSecret)(s.CreateWebhook(r.Context(), account, body.patch()))
}

func updateWebhook(s *service.Service, r *http.Request, account string) (any, error) {
	body, err := bodyOf[webhookBody](r, `{"is_active": …}`)
	if err != nil {
		return nil, err
	}
	return answer(viewWebhook)(s.UpdateWebhook(r.Context(), account, r.URL.Query().Get("id"), body.patch()))
}

func rotateWebhook(s *service.Service, r *http.Request, account string) (any, error) {
	return answer(viewWebhookSecret)(s.RotateWebhook(r.Context(), account, r.URL.Query().Get("id")))
}

func deleteWebhook(s *service.Service, r *http.Request, account string) (any, error) {
	w, err := s.Webhook(r.Context(), account, r.URL.Query().Get("id"))
	if err == nil {
		err = s.DeleteWebhook(r.Context(), account, w.ID)
	}
	return answer(viewWebhook)(w, err)
}

// testWebhook sends a test to a webhook of the account that the query names.
func testWebhook(running *caddymodule.OpenStore, r *http.Request) (any, error) {
	return ofAccount(func(_ *service.Service, r *http.Request, account string) (any, error) {
		return answer(func(a *core.Attempt) attemptView { return attemptView{a.EventID, a.Status, a.Problem, a.Millis} })(
			running.TestWebhook(r.Context(), account, r.URL.Query().Get("id")))
	})(running, r)
}
