package adminapi

import (
	"encoding/json"
	"net/http"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/service"
)

// auditParams are the query parameters of the audit log.
var auditParams = append([]string{"action", "actor", "target", "from", "to", "cursor"}, pageParams...)

// act makes the owner's key of the request the actor of its changes.
func (c *call) act() {
	c.r = c.r.WithContext(core.WithActor(c.ctx(), core.Actor{Kind: core.ActorOwnerKey, ID: c.owner.ID, Name: c.owner.Name, IP: c.config.ClientIP(c.r)}))
}

func viewAuditEntry(e core.AuditEntry) object {
	return object{
		{"id", e.ID()}, {"at", e.At},
		{"actor", object{{"kind", string(e.Actor.Kind)}, {"id", orNull(e.Actor.ID)}, {"name", orNull(e.Actor.Name)}}},
		{"ip", orNull(e.IP)}, {"action", e.Action},
		{"target", object{{"kind", e.Target.Kind}, {"id", orNull(e.Target.ID)}, {"name", orNull(e.Target.Name)}}},
		{"before", rawOrNull(e.Before)}, {"after", rawOrNull(e.After)},
	}
}

// rawOrNull returns b, or nil for a nil b: null in JSON.
func rawOrNull(b json.RawMessage) any {
	if b == nil {
		return nil
	}
	return b
}

// auditLog answers with a page of the matching entries of the audit log.
func auditLog(c *call) error {
	q := c.query()
	f := service.AuditFilter{Action: q.text("action"), Actor: q.text("actor"), Target: q.text("target"), From: q.time("from"), To: q.time("to")}
	p := q.page()
	if !f.From.IsZero() && !f.To.IsZero() && !f.From.Before(f.To) {
		q.wrong("to", "Must be after from")
	}
	if text := q.text("cursor"); text != "" {
		var err error
		if f.Before, err = core.ParseAuditID("cursor", text); err != nil {
			q.wrong("cursor", "Must be the cursor of an earlier answer")
		}
		if q.values.Has("page") {
			q.wrong("page", "Must not be given with a cursor")
		}
	}
	if q.err != nil {
		return q.err
	}
	a, err := c.svc.Audit(c.ctx(), c.account, f, p)
	if err != nil {
		return err
	}
	v := object{{"data", viewEach(viewAuditEntry, a.Entries)}, {"count", a.Found}}
	return c.write(http.StatusOK, append(v, some("cursor", a.Next)...))
}
