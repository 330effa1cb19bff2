package adminapi

import (
	"net/http"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
)

// request is the JSON form of a history entry.
type request struct {
	Timestamp time.Time `json:"timestamp"`
	Endpoint  string    `json:"endpoint"`
	Method    string    `json:"method"`
	Status    string    `json:"status"` // allowed or denied
	IPAddress string    `json:"ip_address"`
	KeyID     string    `json:"key_id,omitempty"` // in the history of a user

	Costs map[string]int64 `json:"costs,omitempty"` // by meter, when they are not one request
}

// requests is the JSON form of a page of a history.
type requests struct {
	Requests []request `json:"requests"`
	Count    int       `json:"count"`
}

func viewKeyRequest(e core.Entry) request {
	status := core.Allowed
	if e.Denied {
		status = core.Denied
	}
	return request{Timestamp: e.At, Endpoint: e.Endpoint, Method: e.Method, Status: string(status), IPAddress: e.IP, Costs: viewCosts(&e)}
}

// viewCosts returns the costs of an entry by meter, nil for one request.
func viewCosts(e *core.Entry) map[string]int64 {
	if e.Cost == 1 && len(e.Costs) == 0 {
		return nil
	}
	costs := map[string]int64{core.MeterRequests: e.Cost}
	for _, m := range e.Costs {
		costs[m.Meter] = m.Cost
	}
	return costs
}

func viewUserRequest(e core.Entry) request {
	v := viewKeyRequest(e)
	v.KeyID = e.KeyID
	return v
}

// history answers with the page of the query.
func history(c *call, view func(core.Entry) request, get func(core.Page) ([]core.Entry, int, error)) error {
	views, total, err := pageOf(c, viewEach(view), get)
	if err != nil {
		return err
	}
	return c.write(http.StatusOK, single{requests{views, total}})
}

func keyRequests(c *call, id string) error {
	return history(c, viewKeyRequest, func(p core.Page) ([]core.Entry, int, error) {
		return c.svc.KeyHistory(c.ctx(), c.account, id, p)
	})
}

func userRequests(c *call, id int64) error {
	return history(c, viewUserRequest, func(p core.Page) ([]core.Entry, int, error) {
		return c.svc.UserHistory(c.ctx(), c.account, id, p)
	})
}
