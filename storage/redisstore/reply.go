package redisstore

import (
	"cmp"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/record"
)

// decodeReply decodes the reply of consume.lua that decides a request.
func decodeReply(c *core.Consumption, answer []byte) (v core.ConsumeResult, err error) {
	r := record.NewReader(answer)
	switch outcome := r.Uint(1); outcome {
	case outcomeRepeated:
		if c.Adjustment != nil { // no limit has decided
			return core.ConsumeResult{Allowed: true, FirstTerms: &core.Terms{}}, nil
		}
		return decodeRepeated(r)
	case outcomeAllowed:
		v = decodeResult(c, r, "")
		if c.Hold != nil && c.Counts() {
			v.HoldID = c.Hold.ID
		}
	case outcomeOverConcurrency, outcomeOverOwnConcurrency:
		v = decodeResult(c, r, core.ReasonConcurrency)
		v.RefusedBy = core.OfPlan
		if outcome == outcomeOverOwnConcurrency {
			v.RefusedBy = core.OfKey
		}
	case outcomeOverRate, outcomeOverOwnRate:
		v = decodeResult(c, r, core.ReasonRate)
		v.RetryAfter, v.RefusedBy = time.Duration(r.Uint(5))*time.Millisecond, core.OfPlan
		if outcome == outcomeOverOwnRate {
			v.RefusedBy = core.OfKey
		}
	default:
		v = decodeResult(c, r, cmp.Or(c.Refused, core.ReasonQuota))
	}
	if r.Failed() {
		return core.ConsumeResult{}, record.ErrDamaged
	}
	return v, nil
}

// decodeResult decodes the second that the windows contain and the usage under each limit: first of the deciding counter, then of
// the counter of a key with limits of its own.
func decodeResult(c *core.Consumption, r *record.Reader, reason core.Reason) core.ConsumeResult {
	at := time.Unix(int64(r.Uint(5)), 0)
	keyAt := at
	var few [4]int64
	used := few[:0]
	for i := range c.Limits() {
		if i == 1+len(c.Further) {
			keyAt = time.Unix(int64(r.Uint(5)), 0)
		}
		used = append(used, int64(r.Uint(7)))
	}
	if c.Adjustment != nil {
		return core.ConsumeResult{Allowed: true}
	}
	return c.Result(reason, at, keyAt, used)
}

// decodeRepeated decodes a stored first answer.
func decodeRepeated(r *record.Reader) (v core.ConsumeResult, err error) {
	first, hold, c := core.Consumption{Cost: 1}, "", record.Decoder(r.Rest())
	if codeTerms(&c, &first, &hold); c.Failed() { // the windows of an invalid period would panic
		return v, record.ErrDamaged
	}
	v = decodeResult(&first, &c.Reader, "")
	v.FirstTerms = &first.Terms
	v.HoldID = hold
	if c.Failed() {
		err = record.ErrDamaged
	}
	return v, err
}
