package core

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// MaxQuantities bounds the quantities of a usage and of a formula.
const MaxQuantities = 16

// formula is a sum of quantities of a usage, each with a factor.
type formula []term

type term struct {
	factor   int64
	quantity string
}

// parseFormula parses a sum such as "input + 4*output". problem is a phrase about the fault of the formula, "" for a valid one.
func parseFormula(text string) (f formula, problem string) {
	for part := range strings.SplitSeq(text, "+") {
		factor, quantity, has := strings.Cut(part, "*")
		if !has {
			factor, quantity = "1", part
		}
		quantity = strings.Trim(quantity, " ")
		n, err := strconv.ParseInt(strings.Trim(factor, " "), 10, 64)
		switch {
		case err != nil || !IsMeterName(quantity):
			return nil, "must be a whole number, or a sum such as 15*input + 60*output of whole numbers and names of quantities"
		case n < 0 || n > MaxMeterCost:
			return nil, fmt.Sprintf("must have factors from 0 to %d", MaxMeterCost)
		case slices.ContainsFunc(f, func(t term) bool { return t.quantity == quantity }):
			return nil, "must name each quantity once"
		case len(f) == MaxQuantities:
			return nil, fmt.Sprintf("must have at most %d quantities", MaxQuantities)
		}
		f = append(f, term{n, quantity})
	}
	return f, ""
}

// Quantities is the usage of a request: a number for the name of each quantity, such as the input and output of a model. A nil map means
// that the usage is unknown.
type Quantities map[string]int64

// Check returns an error with the code INVALID_REQUEST if a usage has too many quantities, or one that is invalid.
func (u Quantities) Check() error {
	if len(u) > MaxQuantities {
		return BadRequest("usage", fmt.Sprintf("Usage must have at most %d quantities", MaxQuantities))
	}
	for name, n := range u {
		switch {
		case !IsMeterName(name):
			return BadRequest("usage", "Usage must name quantities: "+meterForm)
		case n < 0 || n > MaxMeterCost:
			return BadRequest("usage", fmt.Sprintf("The usage of %s must be a whole number from 0 to %d", name, MaxMeterCost))
		}
	}
	return nil
}

// value returns the value of the formula for a usage; bound and false if the value is above bound. A missing quantity is 0.
func (f formula) value(u Quantities, bound int64) (sum int64, ok bool) {
	for _, t := range f {
		sum += t.factor * u[t.quantity] // no overflow: a product is at most 1e18, and the sum before at most bound
		if sum > bound {
			return bound, false
		}
	}
	return sum, true
}
