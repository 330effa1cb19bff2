package memstore

import (
	"slices"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
)

// firstResults holds the results of the requests with a key, by request id. An entry is kept until
// a new request with the same id replaces it, or the key is deleted.
type firstResults map[string]firstResult

type firstResult struct {
	at     time.Time // of the request
	result core.ConsumeResult
}

// lookup returns the first result if c repeats a request.
func (as firstResults) lookup(c *core.Consumption) (core.ConsumeResult, bool) {
	a, ok := as[c.RequestID]
	if c.RequestID == "" || !ok || !c.Repeats(a.at) {
		return core.ConsumeResult{}, false
	}
	first := a.result
	first.FirstTerms, first.Limits = new(*first.FirstTerms), slices.Clone(first.Limits)
	return first, true
}

// rememberResult stores the result of a request under its id, for its key, or for its user if it has no key. Without an id it does
// nothing.
func (s *Store) rememberResult(key core.CounterID, c *core.Consumption, v core.ConsumeResult) {
	if c.RequestID == "" {
		return
	}
	if s.firstResults[key] == nil {
		s.firstResults[key] = firstResults{}
	}
	v.FirstTerms = new(c.Terms)
	v.FirstTerms.Rate = nil
	v.Limits = slices.Clone(v.Limits)
	s.firstResults[key][c.RequestID] = firstResult{at: c.Entry.At, result: v}
}
