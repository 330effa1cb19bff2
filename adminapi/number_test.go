package adminapi

import (
	"encoding/json"
	"math"
	"math/big"
	"strings"
	"testing"
)

func TestParseWhole(t *testing.T) {
	for text, want := range map[string]int64{
		"0": 0, "-0": 0, "0.0": 0, "0e999999999999": 0, "5": 5, "-5": -5, "5.0": 5, "5.000e0": 5,
		"1e3": 1000, "1E+3": 1000, "1.5e1": 15, "1500e-2": 15, "0.0015e4": 15, "100": 100,
		"9223372036854775807": math.MaxInt64, "-9223372036854775807": -math.MaxInt64,
		"9223372036854775808": math.MaxInt64, "1e19": math.MaxInt64, "1e999999999": math.MaxInt64, "1e99999999999999999999": math.MaxInt64,
		"-1e400": -math.MaxInt64, "92233720368547758070e-1": math.MaxInt64,
	} {
		if got, ok := parseWhole(text); !ok || got != want {
			t.Errorf("%s: got %d, %v, want %d", text, got, ok, want)
		}
	}
	for _, text := range []string{"1.5", "0.1", "-0.1", "1e-1", "15e-1", "1e-999999999", "1e-99999999999999999999", `"5"`, "true", "null", "[]", "{}", "", "-"} {
		if got, ok := parseWhole(text); ok {
			t.Errorf("%s: got %d, want none", text, got)
		}
	}
}

// parseWhole agrees with big.Rat on every JSON number.
func FuzzParseWhole(f *testing.F) {
	for _, text := range []string{"0", "-1", "1.50", "12e3", "1200e-2", "9223372036854775808", "0.000", "1e-3", "922337203685477580.7e1"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if !json.Valid([]byte(text)) || strings.ContainsAny(text, " \t\r\n\"[]{}tfn") {
			t.Skip("no number")
		}
		got, ok := parseWhole(text)
		mantissa, exponent, _ := strings.Cut(strings.ToLower(text), "e")
		if len(strings.TrimLeft(exponent, "+-0")) > 3 || len(mantissa) > 1000 {
			return // too large for big.Rat: check only that parseWhole returns
		}
		exact, isNumber := new(big.Rat).SetString(text)
		if !isNumber {
			t.Fatalf("%s: big.Rat cannot read it", text)
		}
		if ok != exact.IsInt() {
			t.Fatalf("%s: whole: got %v, want %v", text, ok, exact.IsInt())
		}
		want := exact.Num()
		if limit := big.NewInt(math.MaxInt64); want.CmpAbs(limit) > 0 {
			want = limit.Mul(limit, big.NewInt(int64(want.Sign())))
		}
		if ok && want.Cmp(big.NewInt(got)) != 0 {
			t.Errorf("%s: got %d, want %v", text, got, want)
		}
	})
}
