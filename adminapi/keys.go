package adminapi

import (
	"net/http"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/document"
	"github.com/limitkeeper/limitkeeper/core/service"
)

// viewKey returns the JSON form of a key, with its value after creation and regeneration, else with a hint.
func viewKey(k *core.Key, secret string, last service.LastRequests) object {
	shown := field{"hint", k.Hint}
	if secret != "" {
		shown = field{"api_key", secret}
	}
	v := view(object{{"id", k.ID}, shown}, &core.KeyMembers, k)
	return append(v, field{"last_used_at", orNull(last.UsedAt)}, field{"last_refused_at", orNull(last.RefusedAt)}).and(k.CreatedAt, k.UpdatedAt)
}

// viewUserKey returns a key in the list of a user.
func viewUserKey(k *core.Key) object {
	return object{{"id", k.ID}, {"name", k.Name}, {"plan_id", orNull(k.PlanID)}, {"status", k.Status}, {"created_at", k.CreatedAt}}
}

// viewPlanKey returns a key in the list of a plan.
func viewPlanKey(k *core.Key) object {
	return object{{"id", k.ID}, {"name", k.Name}, {"user_id", k.UserID}, {"status", k.Status}, {"created_at", k.CreatedAt}}
}

func viewKeyUsage(u *service.KeyUsage) object {
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
		{"last_refused_at", orNull(u.LastRefusedAt)},
		{"denied_omitted", u.DeniedOmitted},
		{"of", u.Of},
		{"limits", viewForecasts(u.Limits, u.ExhaustsAt)},
	}
}

func readNewKey(m *members) (p core.KeyPatch) {
	document.Read(&m.Object, &core.KeyMembers, &p)
	p.Secret = m.Text("api_key")
	return p
}

// readKey takes the members of a key and ignores the read-only ones.
func readKey(m *members) core.KeyPatch {
	m.Ignore("id", "hint", "last_used_at", "last_refused_at", "created_at", "updated_at")
	return readNewKey(m)
}

// readGrace returns how long the old value of a key still works.
func readGrace(m *members) time.Duration {
	seconds := core.OrZero(m.Whole("grace_seconds"))
	tooMany := int64(service.MaxGrace/time.Second) + 1 // core refuses it, and the conversion to Duration cannot overflow
	return time.Duration(max(-1, min(seconds, tooMany))) * time.Second
}

// listKeys reads the times of the last requests of all keys in one call.
func listKeys(c *call) error {
	q := c.query()
	f := q.keyFilter()
	keys, total, err := pageOf(q, func(p core.Page) ([]*core.Key, int, error) { return c.keys(f, p) })
	if err != nil {
		return err
	}
	times, err := c.svc.LastRequests(c.ctx(), c.account, keys)
	if err != nil {
		return err
	}
	views := make([]object, len(keys))
	for i, k := range keys {
		views[i] = viewKey(k, "", times[i])
	}
	return c.writeList(views, total)
}

// keys returns a page of the keys of the filter. A plan selects the keys that it limits.
func (c *call) keys(f core.KeyFilter, p core.Page) ([]*core.Key, int, error) {
	if f.PlanID != nil {
		return c.svc.KeysUnderPlan(c.ctx(), c.account, *f.PlanID, f, p)
	}
	return c.svc.Keys(c.ctx(), c.account, f, p)
}

func userKeys(c *call, id int64, p core.Page) ([]*core.Key, int, error) {
	return c.keys(core.KeyFilter{UserID: id}, p)
}

func planKeys(c *call, id string, p core.Page) ([]*core.Key, int, error) {
	return c.keys(core.KeyFilter{PlanID: &id}, p)
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
			return core.Invalid("user_id", "Must be the user of the path")
		}
		p.UserID = user
	}
	k, secret, err := c.svc.CreateKey(c.ctx(), c.account, p)
	return c.replySecret(http.StatusCreated, k, secret, err)
}

// updateKey sets the members of a key that are in the body. A body that does more than disabling the key needs [core.PermitEdit].
func updateKey(c *call, id string) error {
	p, err := decode(c, readKey)
	if err != nil {
		return err
	}
	if !p.OnlyDisables() {
		if err := c.permit(core.PermitEdit); err != nil {
			return err
		}
	}
	k, err := c.svc.UpdateKey(c.ctx(), c.account, id, p)
	return replyKey(c, http.StatusOK, k, err)
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
	times, err := c.svc.LastRequests(c.ctx(), c.account, []*core.Key{k})
	if err != nil {
		return err
	}
	return c.writeData(status, viewKey(k, secret, times[0]))
}
