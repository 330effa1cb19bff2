package core

// Tx is a transaction on the resources of one account. Its reads show the account as it was when
// the transaction began: read first, then write, and write each resource once. Results are copies
// that the caller may change.
type Tx interface {
	// User returns a user, or ErrUserNotFound.
	User(id int64) (*User, error)
	// Plan returns a plan, or ErrPlanNotFound.
	Plan(id string) (*Plan, error)
	// Key returns a key, or ErrKeyNotFound.
	Key(id string) (*Key, error)
	// CountUsers returns the number of users that match.
	CountUsers(f UserFilter) (int, error)
	// CountKeys returns the number of keys that match.
	CountKeys(f KeyFilter) (int, error)
	// Plans lists the plans of the account by Seq, with their total.
	Plans(p Page) ([]*Plan, int, error)

	// Prices returns [Store.Prices].
	Prices() (*Prices, error)

	// Webhook returns a webhook, or ErrWebhookNotFound.
	Webhook(id string) (*Webhook, error)
	// Webhooks lists the webhooks of the account by Seq, with their total.
	Webhooks(p Page) ([]*Webhook, int, error)
	// Events returns the event with each id, in the order of ids, nil for a missing event.
	Events(ids ...string) ([]*Event, error)
	// Attempts lists the delivery log of a webhook by Seq, with its size.
	Attempts(webhook string, p Page) ([]*Attempt, int, error)

	// PutUser stores a user in place of the one with its ID. A user with the ID 0 is
	// new and gets the next ID: one more than the largest that the account ever gave,
	// from 1. An email that another user of the account has, compared by [FoldEmail],
	// is ErrDuplicateEmail. An external id that another user of the account has, compared
	// byte by byte, is ErrDuplicateExternalID.
	PutUser(u *User) error
	// PutPlan stores a plan in place of the one with its ID. A plan with the Seq 0 is
	// new and gets the next Seq.
	PutPlan(p *Plan) error
	// PutKey stores a key in place of the one with its ID. From then on exactly its Digests find
	// the key. A key with the Seq 0 is new and gets the next Seq, also in place of a key with its ID.
	PutKey(k *Key) error
	// PutPrices stores the prices of the account in place of the earlier ones.
	PutPrices(p *Prices) error
	// PutWebhook stores a webhook in place of the one with its ID. A webhook with the Seq 0 is new and gets the next Seq.
	PutWebhook(w *Webhook) error
	// PutEvent stores an event in place of the one with its ID. An event with the Seq 0 gets the next Seq, also in place of an event with its ID:
	// a caller that must not repeat an event reads Events first.
	PutEvent(e *Event) error
	// PutAttempt stores an attempt in place of the one with its ID. An attempt with the Seq 0 gets the next Seq, also in place of another one.
	PutAttempt(a *Attempt) error
	// DeleteWebhook deletes a webhook with its delivery log. Pending deliveries stay in their events.
	DeleteWebhook(id string) error
	// DeleteEvent deletes an event.
	DeleteEvent(id string) error
	// DeleteUser deletes a user and its keys with their counters and histories. With more keys than the store changes at once, the
	// transaction is ErrTooLarge: delete keys first.
	DeleteUser(id int64) error
	// DeletePlan deletes a plan.
	DeletePlan(id string) error
	// DeleteKey deletes a key with its counter and its history. The usage of the key remains in
	// the counter and history of its user.
	DeleteKey(id string) error
}
