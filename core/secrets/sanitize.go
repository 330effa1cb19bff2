package secrets

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// Sanitize masks secrets in s, replaces control characters and invalid UTF-8 by U+FFFD, and cuts s
// to at most n bytes.
func Sanitize(s string, n int) string {
	if isPlainASCII(s) {
		return s[:min(n, len(s))]
	}
	s = MaskSecrets(s)
	if strings.ContainsFunc(s, unicode.IsControl) {
		s = strings.Map(func(r rune) rune {
			if unicode.IsControl(r) {
				return utf8.RuneError
			}
			return r
		}, s)
	}
	if len(s) <= n && utf8.ValidString(s) {
		return s
	}
	s = strings.ToValidUTF8(s, "\uFFFD")
	return strings.ToValidUTF8(s[:min(n, len(s))], "")
}

// isPlainASCII reports whether s is printable ASCII that holds no secret, from one look at each byte. Nearly every request has
// only such texts.
func isPlainASCII(s string) bool {
	var seen byte
	for i := range len(s) {
		seen |= textBytes[s[i]]
	}
	return seen == 0 || seen == mayBeSecret && isPlain(s)
}

const (
	notPrintable = 1 << iota
	mayBeSecret  // each secret in printable ASCII has a _ or a percent sign
)

var textBytes = func() (table [256]byte) {
	for c := range table {
		if c < ' ' || c > '~' {
			table[c] = notPrintable
		}
	}
	table['_'], table['%'] = mayBeSecret, mayBeSecret
	return table
}()
