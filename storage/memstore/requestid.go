package memstore

import (
	"slices"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
)

// firstResult is the result of the first request with a request id. It is kept until a new request with the same id
// replaces it, or the key is deleted.
type firstResult struct {
	at     time.Time // of the request
	result core.ConsumeResult
}

// firstResult returns the first result if c repeats a request.
func (u *usage) firstResult(c *core.Consumption) (core.ConsumeResult, bool) {
	first, ok := u.results[c.RequestID]
	if !ok || !c.Repeats(first.at) {
		return core.ConsumeResult{}, false
	}
	v := first.result
	v.FirstTerms, v.Limits = new(*v.FirstTerms), slices.Clone(v.Limits)
	return v, true
}

// rememberResult stores the result of a request under its id. Without an id it does nothing.
func (u *usage) rememberResult(c *core.Consumption, v core.ConsumeResult) {
	if c.RequestID == "" {
		return
	}
	v.FirstTerms = c.Terms.WithoutRates()
	v.Limits = slices.Clone(v.Limits)
	u.results[c.RequestID] = firstResult{at: c.Entry.At, result: v}
}
