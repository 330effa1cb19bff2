package memstore

import (
	"time"

	"github.com/limitkeeper/limitkeeper/core"
)

// answers are the first answers to the requests with a key, by request id. None is
// ever let go: a later one takes its place, or the key is deleted.
type answers map[string]answer

type answer struct {
	at    time.Time // of the request
	usage core.Usage
	terms core.Terms
}

// to returns the first answer to a request that is made again.
func (as answers) to(c *core.Consumption) (core.ConsumeResult, bool) {
	a, ok := as[c.RequestID]
	if c.RequestID == "" || !ok || !c.Repeats(a.at) {
		return core.ConsumeResult{}, false
	}
	return core.ConsumeResult{Usage: a.usage, Allowed: true, FirstTerms: new(a.terms)}, true
}

// answered remembers the answer to a request with a key.
func (s *Store) answered(key core.CounterID, c *core.Consumption, v core.ConsumeResult) {
	if s.answers[key] == nil {
		s.answers[key] = answers{}
	}
	s.answers[key][c.RequestID] = answer{at: c.Entry.At, usage: v.Usage, terms: c.Terms}
}
