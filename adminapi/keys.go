package adminapi

import (
	"net/http"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/document"
)

// viewKey returns the JSON form of a key, with its value after creation and regeneration, else with a hint.
func viewKey(k *core.Key, secret string, lastUsed time.Time) object {
	shown := field{"hint", k.Hint}
	if secret != "" {
		shown = field{"api_key", secret}
	}
	v := view(object{{"id", k.ID}, shown}, &core.KeyMembers, k)
	return append(v, field{"last_used_at", orNull(lastUsed)}).and(k.CreatedAt, k.UpdatedAt)
}

// viewKeys returns the JSON form of keys. It reads all last-used times in one call.
func (c *call) viewKeys(ks []*core.Key) ([]object, error) {
	times, err := c.svc.LastUsed(c.ctx(), c.account, ks)
	if err != nil {
		return nil, err
	}
	views := make([]object, len(ks))
	for i, k := range ks {
		views[i] = viewKey(k, "", times[i])
	}
	return views, nil
}

// viewUserKey returns a key in the list of a user.
func viewUserKey(k *core.Key) object {
	return object{{"id", k.ID}, {"name", k.Name}, {"plan_id", orNull(k.PlanID)}, {"status", k.Status}, {"created_at", k.CreatedAt}}
}

// viewPlanKey returns a key in the list of a plan.
func viewPlanKey(k *core.Key) object {
	return object{{"id", k.ID}, {"name", k.Name}, {"user_id", k.UserID}, {"status", k.Status}, {"created_at", k.CreatedAt}}
}

func viewKeyUsage(u *core.KeyUsage) object {
	var remaining *int64 // null: no limit
	if !u.Unlimited() {
		remaining = new(u.Limit.Remaining(u.Used))
	}
	return object{
		{"current_usage", u.Used},
		{"limit", maxOrNull(u.Max)},
		{"remaining", remaining},
		{"percentage_used", u.Percentage()},
		{"reset_time", orNull(u.Window.End)}, // null: never
		{"period", u.Period},
		{"meter", u.Meter},
		{"plan_name", u.Plan.Name},
		{"last_used_at", orNull(u.LastUsedAt)},
		{"denied_omitted", u.DeniedOmitted},
		{"limits", viewLimits(u.Limits)},
	}
}

func readNewKey(m *members) (p core.KeyPatch) {
	document.Read(m.Object, &core.KeyMembers, &p)
	p.Secret = m.Text("api_key")
	m.checkPlanID(p.PlanID)
	return p
}

// readKey takes the members of a key and ignores the read-only ones.
func readKey(m *members) core.KeyPatch {
	m.Ignore("id", "hint", "last_used_at", "created_at", "updated_at")
	return readNewKey(m)
}

// readGrace returns how long the old value of a key still works.
func readGrace(m *members) time.Duration {
	seconds := orZero(m.Whole("grace_seconds"))
	tooMany := int64(core.MaxGrace/time.Second) + 1 // core refuses it, and the conversion to Duration cannot overflow
	return time.Duration(max(-1, min(seconds, tooMany))) * time.Second
}

func listKeys(c *call) error {
	q := c.query()
	f := q.keyFilter()
	if q.err != nil {
		return q.err
	}
	return list(c, c.viewKeys, c.keys(f))
}

// keys returns a function that lists the keys of the filter. A plan selects the keys that it limits.
func (c *call) keys(f core.KeyFilter) func(core.Page) ([]*core.Key, int, error) {
	return func(p core.Page) ([]*core.Key, int, error) {
		if f.PlanID != nil {
			return c.svc.KeysUnderPlan(c.ctx(), c.account, *f.PlanID, f, p)
		}
		return c.svc.Keys(c.ctx(), c.account, f, p)
	}
}

func userKeys(c *call, id int64) error {
	if _, err := c.svc.User(c.ctx(), c.account, id); err != nil {
		return err
	}
	return list(c, viewEach(viewUserKey), c.keys(core.KeyFilter{UserID: id}))
}

func planKeys(c *call, id string) error {
	if _, err := c.svc.Plan(c.ctx(), c.account, id); err != nil {
		return err
	}
	return list(c, viewEach(viewPlanKey), c.keys(core.KeyFilter{PlanID: &id}))
}

func createKey(c *call) error { return c.createKeyOf(nil) }

func createUserKey(c *call, id int64) error { return c.createKeyOf(&id) }

// createKeyOf creates a key for a user, nil for the user in the body.
func (c *call) createKeyOf(user *int64) error {
	p, err := decode(c, readNewKey)
	if err != nil {
		return err
	}
	if user != nil {
		if p.UserID != nil && *p.UserID != *user {
			return validationError("user_id", "Must be the user of the path")
		}
		p.UserID = user
	}
	k, secret, err := c.svc.CreateKey(c.ctx(), c.account, p)
	return c.replySecret(http.StatusCreated, k, secret, err)
}

func regenerateKey(c *call, id string) error {
	grace, err := decode(c, readGrace)
	if err != nil {
		return err
	}
	k, secret, err := c.svc.RegenerateKey(c.ctx(), c.account, id, grace)
	return c.replySecret(http.StatusOK, k, secret, err)
}

func replyKey(c *call, status int, k *core.Key, err error) error {
	return c.replySecret(status, k, "", err)
}

// replySecret is [replyKey] with the value of the key, unless it is empty.
func (c *call) replySecret(status int, k *core.Key, secret string, err error) error {
	if err != nil {
		return err
	}
	times, err := c.svc.LastUsed(c.ctx(), c.account, []*core.Key{k})
	if err != nil {
		return err
	}
	return c.write(status, single{viewKey(k, secret, times[0])})
}
