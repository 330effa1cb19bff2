package adminapi

import (
	"math"
	"strconv"
	"strings"
)

// parseWhole parses a JSON number with a whole value in any notation: 5, 5.0, 50e-1. A number outside
// int64 becomes the nearest int64. ok is false for a fraction and for any other text.
//
// The time is linear in the length of the text: 1e999999999 is not expanded.
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
	default: // out of range, ParseInt returns math.MaxInt64
		n, _ = strconv.ParseInt(significant+strings.Repeat("0", shift), 10, 64)
	}
	if negative {
		n = -n
	}
	return n, true
}

// parseExponent returns the exponent of a number, clamped so that additions cannot overflow.
func parseExponent(text string) int {
	const far = 1 << 30
	if text == "" {
		return 0
	}
	n, _ := strconv.ParseInt(text, 10, 64) // out of range, ParseInt returns the nearest int64
	return int(max(-far, min(n, far)))
}
