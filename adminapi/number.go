package adminapi

import (
	"math"
	"strconv"
	"strings"
)

// parseWhole reads a JSON number whose value is whole, however it is written: 5,
// 5.0, 50e-1. One beyond int64 becomes the nearest int64. What is no number, or has
// a fraction, is not ok.
//
// It takes time in the length of the text only: 1e999999999 is not written out.
func parseWhole(text string) (n int64, ok bool) {
	unsigned, negative := strings.CutPrefix(text, "-")
	if unsigned == "" || unsigned[0] < '0' || unsigned[0] > '9' {
		return 0, false
	}
	mantissa, exponent, _ := strings.Cut(strings.ToLower(unsigned), "e")
	whole, fraction, _ := strings.Cut(mantissa, ".")
	digits := strings.TrimLeft(whole+fraction, "0")
	if digits == "" {
		return 0, true
	}
	significant := strings.TrimRight(digits, "0")
	shift := parseExponent(exponent) - len(fraction) + len(digits) - len(significant)
	switch {
	case shift < 0:
		return 0, false
	case len(significant)+shift > 19:
		n = math.MaxInt64
	default: // ParseInt returns the largest there is when it is out of range
		n, _ = strconv.ParseInt(significant+strings.Repeat("0", shift), 10, 64)
	}
	if negative {
		n = -n
	}
	return n, true
}

// parseExponent returns the exponent of a number, held to a range in which it can
// be reckoned with.
func parseExponent(text string) int {
	const far = 1 << 30
	if text == "" {
		return 0
	}
	n, _ := strconv.ParseInt(text, 10, 64) // out of range it is the nearest there is
	return int(max(-far, min(n, far)))
}
