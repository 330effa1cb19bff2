package adminapi

import (
	"net/http"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
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

// userKey is a key in the list of a user.
type userKey struct {
	ID        string         `json:"id"`
	Name      string         `json:"name"`
	PlanID    *string        `json:"plan_id"`
	Status    core.KeyStatus `json:"status"`
	CreatedAt time.Time      `json:"created_at"`
}

func viewUserKey(k *core.Key) userKey {
	return userKey{k.ID, k.Name, orNull(k.PlanID), k.Status, k.CreatedAt}
}

// planKey is a key in the list of a plan.
type planKey struct {
	ID        string         `json:"id"`
	Name      string         `json:"name"`
	UserID    int64          `json:"user_id"`
	Status    core.KeyStatus `json:"status"`
	CreatedAt time.Time      `json:"created_at"`
}

func viewPlanKey(k *core.Key) planKey {
	return planKey{k.ID, k.Name, k.UserID, k.Status, k.CreatedAt}
}

// keyUsageView is the JSON form of the usage of a key.
type keyUsageView struct {
	CurrentUsage   int64       `json:"current_usage"`
	Limit          *int64      `json:"limit"`     // null: no limit
	Remaining      *int64      `json:"remaining"` // null: no limit
	PercentageUsed float64     `json:"percentage_used"`
	ResetTime      *time.Time  `json:"reset_time"` // null: never
	Period         core.Period `json:"period"`
	Meter          string      `json:"meter"`
	PlanName       string      `json:"plan_name"`
	LastUsedAt     *time.Time  `json:"last_used_at"`
	DeniedOmitted  int64       `json:"denied_omitted"`
	Limits         []limit     `json:"limits"`
}

func viewKeyUsage(u *core.KeyUsage) keyUsageView {
	v := keyUsageView{
		CurrentUsage: u.Used, PercentageUsed: u.Percentage(), ResetTime: orNull(u.Window.End),
		Period: u.Period, Meter: u.Meter, PlanName: u.Plan.Name,
		LastUsedAt: orNull(u.LastUsedAt), DeniedOmitted: u.DeniedOmitted,
		Limits: viewLimits(u.Limits),
	}
	if v.Limit = maxOrNull(u.Max); v.Limit != nil {
		v.Remaining = new(u.Limit.Remaining(u.Used))
	}
	return v
}

func readNewKey(m *members) core.KeyPatch { return readKeyMembers(m, nil) }

// readKey takes the members of a key and ignores the read-only ones.
func readKey(m *members) core.KeyPatch {
	return readKeyMembers(m, []string{"id", "hint", "last_used_at", "created_at", "updated_at"})
}

func readKeyMembers(m *members, readOnly []string) core.KeyPatch {
	p := readPatch(m, &core.KeyMembers, readOnly)
	p.Secret = m.Text("api_key")
	m.checkPlanID(p.PlanID)
	return p
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

func createKey(c *call) error {
	p, err := decode(c, readNewKey)
	if err != nil {
		return err
	}
	return c.newKey(p)
}

// createUserKey creates a key for the user in the path.
func createUserKey(c *call, id int64) error {
	p, err := decode(c, readNewKey)
	if err != nil {
		return err
	}
	if p.UserID != nil && *p.UserID != id {
		return validationError("user_id", "Must be the user of the path")
	}
	p.UserID = &id
	return c.newKey(p)
}

func (c *call) newKey(p core.KeyPatch) error {
	k, secret, err := c.svc.CreateKey(c.ctx(), c.account, p)
	return c.replyKey(http.StatusCreated, k, secret, err)
}

func regenerateKey(c *call, id string) error {
	grace, err := decode(c, readGrace)
	if err != nil {
		return err
	}
	k, secret, err := c.svc.RegenerateKey(c.ctx(), c.account, id, grace)
	return c.replyKey(http.StatusOK, k, secret, err)
}

func getKey(c *call, id string) error {
	k, err := c.svc.Key(c.ctx(), c.account, id)
	return c.replyKey(http.StatusOK, k, "", err)
}

func updateKey(c *call, id string) error {
	p, err := decode(c, readKey)
	if err != nil {
		return err
	}
	k, err := c.svc.UpdateKey(c.ctx(), c.account, id, p)
	return c.replyKey(http.StatusOK, k, "", err)
}

// replyKey answers with a key, and with its value unless it is empty.
func (c *call) replyKey(status int, k *core.Key, secret string, err error) error {
	if err != nil {
		return err
	}
	times, err := c.svc.LastUsed(c.ctx(), c.account, []*core.Key{k})
	if err != nil {
		return err
	}
	return c.write(status, single{viewKey(k, secret, times[0])})
}

func deleteKey(c *call, id string) error {
	return deleted(c, "API key", c.svc.DeleteKey(c.ctx(), c.account, id))
}

func keyUsage(c *call, id string) error {
	u, err := c.svc.KeyUsage(c.ctx(), c.account, id)
	return reply(c, http.StatusOK, viewKeyUsage, u, err)
}
