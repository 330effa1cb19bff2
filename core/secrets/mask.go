package secrets

import (
	"bytes"
	"encoding/hex"
	"hash/crc32"
	"strings"
)

// MaskSecrets replaces each text in s that looks like a secret, so that s can be stored and logged:
//
//   - lk_, followed by at least six of the characters A-Z a-z 0-9 _ = -; in any case if s also has a percent sign or lk_ in lower case
//   - whsec_, followed by at least six of the characters A-Z a-z 0-9 + / = _ -, in the same cases
//   - the value of a key of any prefix with the right checksum: see [NewUserSecret]
//
// Each character may be percent-encoded (RFC 3986 section 2.1) once or more. A text without a percent sign, without lk_ and whsec_ in
// lower case and without a _ before 32 letters or digits is returned as is. The time is linear in the length of s. The masks do
// not depend on the accounts of the process.
func MaskSecrets(s string) string {
	if isPlain(s) {
		return s
	}
	t := decodePercent(s)
	return t.replace(t.nextSecret)
}

// HoldsSecret reports whether s holds a secret that [MaskSecrets] masks. Use it to refuse a text.
func HoldsSecret(s string) bool { return MaskSecrets(s) != s }

// ReplaceSecret replaces each copy of the secret in s by replacement. The characters of a copy
// stand as they are or percent-encoded, once or more. The time is linear in the length of s.
func ReplaceSecret(s, secret, replacement string) string {
	if !strings.Contains(s, "%") {
		return strings.ReplaceAll(s, secret, replacement)
	}
	t := decodePercent(s)
	return t.replace(func(from int) (int, int, string) {
		i := bytes.Index(t.text[from:], []byte(secret))
		if i < 0 {
			return -1, 0, ""
		}
		return from + i, from + i + len(secret), replacement
	})
}

// isPlain reports whether s holds no secret, from a look at its bytes: no percent sign, no lk_ and no whsec_ in lower case, and no _ before 32
// letters or digits.
func isPlain(s string) bool {
	if strings.IndexByte(s, '%') >= 0 || strings.Contains(s, OwnerPrefix) || strings.Contains(s, SigningPrefix) {
		return false
	}
	for i := 0; ; {
		next := strings.IndexByte(s[i:], '_')
		if next < 0 || len(s)-i-next-1 < checkedLength {
			return true
		}
		i += next + 1
		last := i + checkedLength - 1
		for last >= i && ownerBytes[s[last]] {
			last--
		}
		if last < i {
			return false
		}
		i = last // it ends the letters and digits behind each _ before it
	}
}

// checkedLength is the length of the random part and the checksum of a key.
const checkedLength = userRandom + checksumLength

// decodedText is a text without percent-encoding. text[i] stands at at[i] in the original s, and the last element of at is the length
// of s.
type decodedText struct {
	s    string
	text []byte
	at   []int32
}

// decodePercent decodes each character of s, as often as it is encoded. A percent sign that encodes nothing stays.
func decodePercent(s string) *decodedText {
	t := &decodedText{s: s, text: make([]byte, 0, len(s)), at: make([]int32, 0, len(s)+1)}
	for i := 0; i < len(s); {
		c, n := s[i], 1
		if c == '%' || c == kelvin[0] || c == longS[0] {
			c, n = decodeByte(s[i:])
		}
		t.text, t.at = append(t.text, c), append(t.at, int32(i))
		i += n
	}
	t.at = append(t.at, int32(len(s)))
	return t
}

const (
	kelvin = "\u212a" // the Kelvin sign, which equals k without regard to case
	longS  = "\u017f" // the long s, which equals s without regard to case
)

// decodeByte returns the byte at the start of s, which is not empty, and how many bytes encode it: as it is, or percent-encoded
// once or more.
func decodeByte(s string) (c byte, n int) {
	switch {
	case strings.HasPrefix(s, kelvin):
		return 'k', len(kelvin)
	case strings.HasPrefix(s, longS):
		return 's', len(longS)
	case s[0] != '%':
		return s[0], 1
	}
	n = 1
	for strings.HasPrefix(s[n:], "25") {
		n += 2
	}
	var decoded [1]byte
	if len(s) < n+2 {
		return '%', 1
	}
	if _, err := hex.Decode(decoded[:], []byte(s[n:n+2])); err != nil {
		return '%', 1
	}
	return decoded[0], n + 2
}

// replace returns the original text with replacements. next returns the next span of the decoded text from an index on, and
// its replacement; a negative start for none.
func (t *decodedText) replace(next func(from int) (start, end int, replacement string)) string {
	var b strings.Builder
	done := 0
	for from := 0; ; {
		start, end, replacement := next(from)
		if start < 0 {
			break
		}
		b.WriteString(t.s[done:t.at[start]])
		b.WriteString(replacement)
		done, from = int(t.at[end]), end
	}
	if done == 0 {
		return t.s
	}
	b.WriteString(t.s[done:])
	return b.String()
}

// prefixedSecrets are the secrets that a prefix shows, with the characters behind it. Each prefix ends with its only _.
var prefixedSecrets = []struct {
	prefix string
	bytes  *byteSet
}{{OwnerPrefix, userBytes}, {SigningPrefix, newByteSet(base62 + "+/=_-")}}

// nextSecret returns the next secret from an index on, and its mask.
func (t *decodedText) nextSecret(from int) (start, end int, mask string) {
	for i := from; ; i++ {
		next := bytes.IndexByte(t.text[i:], '_')
		if next < 0 {
			return -1, 0, ""
		}
		i += next
		for _, p := range prefixedSecrets {
			const least = 6
			start := i - len(p.prefix) + 1
			if start < from || !bytes.EqualFold(t.text[start:i], []byte(p.prefix[:len(p.prefix)-1])) {
				continue
			}
			if n := prefixLength(t.text[i+1:], p.bytes); n >= least {
				return start, i + 1 + n, p.prefix + "***"
			}
		}
		if start := t.checkedStart(from, i+1); start >= 0 {
			return start, i + 1 + checkedLength, string(t.text[start:i+1]) + "***"
		}
	}
}

// checkedStart returns where a key begins whose prefix ends before the index at, and whose checksum is right; -1 for none. It computes at
// most 31 checksums of at most 58 bytes, and allocates nothing.
func (t *decodedText) checkedStart(from, at int) int {
	if len(t.text) < at+checkedLength || prefixLength(t.text[at:at+checkedLength], ownerBytes) < checkedLength {
		return -1
	}
	sum := checksumValue(t.text[at+userRandom : at+checkedLength])
	for start := at - 2; start >= from && at-start <= MaxPrefix && prefixBytes[t.text[start]]; start-- {
		if c := t.text[start]; c >= 'a' && c <= 'z' && uint64(crc32.ChecksumIEEE(t.text[start:at+userRandom])) == sum {
			return start
		}
	}
	return -1
}

// prefixBytes are the characters of key prefixes.
var prefixBytes = newByteSet("abcdefghijklmnopqrstuvwxyz0123456789_")

// prefixLength returns how many bytes at the start of text are in the set.
func prefixLength(text []byte, set *byteSet) int {
	for i, c := range text {
		if !set[c] {
			return i
		}
	}
	return len(text)
}
