package core

import "math"

// MeterRequests is the name of the meter that every account has: it counts requests.
const MeterRequests = "requests"

// MaxMeterCost is the largest cost of one request on a meter.
const MaxMeterCost = 1_000_000_000

// Unlimited is the [Terms.Limit] of a plan without a primary limit.
const Unlimited = math.MaxInt64

// Limit allows so much of a meter in a period.
type Limit struct {
	Meter  string `json:"meter"`
	Max    int64  `json:"max"`
	Period Period `json:"period"`
}

// MeterCost is the cost of a request on one meter.
type MeterCost struct {
	Meter string `json:"meter"`
	Cost  int64  `json:"cost"`
}

// allows reports whether a cost fits when the usage is used. With look, the request costs nothing on any meter.
func (l Limit) allows(used, cost int64, look bool) bool {
	switch {
	case look:
		return used < l.Max
	case cost == 0:
		return true
	}
	return used < l.Max && cost <= l.Max-used
}
