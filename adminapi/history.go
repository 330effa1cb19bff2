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
	return request{Timestamp: e.At, Endpoint: e.Endpoint, Method: e.Method, Status: string(status), IPAddress: e.IP}
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
