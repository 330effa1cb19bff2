package adminapi

import (
	"slices"
	"strings"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
)

// requestColumns are the columns of the history as CSV.
var requestColumns = []string{"timestamp", "user_id", "key_id", "kind", "method", "endpoint", "status", "reason", "limit_of", "limit_meter", "limit_period",
	"limit_max", "limit_used", "costs", "adjusted_meter", "delta", "set", "period", "hold_id", "held", "request_id", "ip_address"}

// requestCells returns the cells of an entry, of which o is the JSON form, in the order of requestColumns. Costs are JSON objects.
func requestCells(e *core.Entry, o object) []string {
	cells := make([]string, len(requestColumns))
	set := func(column, prefix string, v any) {
		i := slices.Index(requestColumns, prefix+column)
		if i < 0 {
			return
		}
		switch v := v.(type) {
		case string:
			cells[i] = cell(v)
		case time.Time:
			cells[i] = v.Format(time.RFC3339Nano)
		default:
			text, _ := appendValue(nil, v) // of an answer, which can be marshalled
			cells[i] = strings.Trim(string(text), `"`)
		}
	}
	for _, f := range o {
		switch f.name {
		case "limit":
			for _, of := range f.value.(object) {
				set(of.name, "limit_", of.value)
			}
		case "meter":
			set("adjusted_meter", "", f.value)
		default:
			set(f.name, "", f.value)
		}
	}
	if e.Adjustment == nil {
		set("costs", "", viewCosts(e.Cost, e.Costs))
	}
	return cells
}

// streamRequests answers with all matching entries of all keys.
func streamRequests(c *call, kind string) error {
	q := c.query()
	f := c.historyFilter(q)
	for _, name := range []string{"cursor", "page", "limit"} {
		if q.values.Has(name) {
			q.wrong(name, "Must not be given for CSV or NDJSON, which have all entries: narrow them with from and to")
		}
	}
	if q.err != nil {
		return q.err
	}
	return c.stream(kind, requestColumns, func(s *stream) error {
		return c.svc.StreamHistory(c.ctx(), c.account, f, func(entries []core.Entry) error {
			return s.rows(func() error {
				for i := range entries {
					o := viewAccountRequest(entries[i])
					if err := s.row(o, func() []string { return requestCells(&entries[i], o) }); err != nil {
						return err
					}
				}
				return nil
			})
		})
	})
}
