package core

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"strings"
)

// The forms of the secrets.
const (
	ownerPrefix     = "lk_"      // an owner's key: lk_ and ownerRandom letters or digits
	ownerRandom     = 29         // 32 characters in all
	userPrefix      = "lk_user_" // the value of an end user's key
	userRandom      = 32
	maxSecretLength = 256
	hintLength      = 4
	alphanumeric    = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
)

// Digest is the SHA-256 of a secret, the only form in which a secret is stored. Secrets have more
// than 170 random bits: no salt or stretching is needed.
type Digest [sha256.Size]byte

// DigestOf returns the digest of a secret.
func DigestOf(secret string) Digest {
	var buf [maxSecretLength]byte // a conversion would allocate
	if len(secret) > len(buf) {
		return sha256.Sum256([]byte(secret))
	}
	return sha256.Sum256(buf[:copy(buf[:], secret)])
}

// MarshalText writes the digest as 64 hexadecimal digits.
func (d Digest) MarshalText() ([]byte, error) {
	return hex.AppendEncode(nil, d[:]), nil
}

// UnmarshalText reads what MarshalText writes.
func (d *Digest) UnmarshalText(text []byte) error {
	if hex.DecodedLen(len(text)) != len(d) {
		return errors.New("digest: want 64 hexadecimal digits")
	}
	_, err := hex.Decode(d[:], text)
	return err
}

// NewOwnerSecret returns a new random owner's key: 32 characters that begin with
// lk_.
func NewOwnerSecret() string { return ownerPrefix + random(ownerRandom) }

// NewUserSecret returns a new random value of an end user's key: 40 characters
// that begin with lk_user_.
func NewUserSecret() string { return userPrefix + random(userRandom) }

// newID returns a new random identifier with the prefix, e.g. plan_….
func newID(prefix string) string { return prefix + random(20) }

// random returns n letters or digits, uniformly distributed. It rejects bytes that would favour the
// first letters.
func random(n int) string {
	const unbiased = 256 - 256%len(alphanumeric)
	out := make([]byte, 0, n)
	var buf [64]byte
	for len(out) < n {
		_, _ = rand.Read(buf[:]) // crypto/rand.Read never fails
		for _, b := range buf {
			if int(b) < unbiased && len(out) < n {
				out = append(out, alphanumeric[int(b)%len(alphanumeric)])
			}
		}
	}
	return string(out)
}

// WellFormedOwnerSecret reports whether s has the form of an owner's key.
func WellFormedOwnerSecret(s string) bool {
	return len(s) == len(ownerPrefix)+ownerRandom && strings.HasPrefix(s, ownerPrefix) &&
		ownerBytes.containsAll(s[len(ownerPrefix):])
}

// WellFormedUserSecret reports whether s has the form of the value of a key: lk_user_ and at least
// one letter, digit, _, - or =, at most 256 bytes in all.
func WellFormedUserSecret(s string) bool {
	if len(s) <= len(userPrefix) || len(s) > maxSecretLength || !strings.HasPrefix(s, userPrefix) {
		return false
	}
	return userBytes.containsAll(s[len(userPrefix):])
}

// byteSet is a set of bytes.
type byteSet [256]bool

// The characters of secrets behind their prefixes.
var ownerBytes, userBytes = newByteSet(alphanumeric), newByteSet(alphanumeric + "_-=")

func newByteSet(s string) *byteSet {
	var set byteSet
	for _, b := range []byte(s) {
		set[b] = true
	}
	return &set
}

// containsAll reports whether every byte of s is in the set.
func (set *byteSet) containsAll(s string) bool {
	for i := range len(s) {
		if !set[s[i]] {
			return false
		}
	}
	return true
}

// HintOf returns the part of a secret that is stored and shown: its prefix and its last four
// characters, e.g. lk_user_…wxyz.
func HintOf(secret string) string {
	prefix := ownerPrefix
	if strings.HasPrefix(secret, userPrefix) {
		prefix = userPrefix
	}
	if len(secret) < len(prefix)+2*hintLength { // too short to show four characters
		return prefix + "…"
	}
	return prefix + "…" + secret[len(secret)-hintLength:]
}

// MaskSecrets replaces each text in s that looks like one of our secrets, so that s can be
// stored and logged: lk_ and six or more of the characters of secrets, in any case, each as
// it is or percent-encoded (RFC 3986 section 2.1) once or more. A text without a percent sign
// and without lk_ in lower case is returned as is. The time is linear in the length of s.
func MaskSecrets(s string) string {
	if !strings.Contains(s, ownerPrefix) && !strings.Contains(s, "%") {
		return s
	}
	return replaceMatches(s, ownerPrefix[0], ownerPrefix+"***", matchSecret)
}

// MayHoldUserSecret reports whether s may contain the value of a key, plain or percent-encoded. It
// is cheap, and false for most texts.
func MayHoldUserSecret(s string) bool {
	return len(s) > len(userPrefix) && (strings.IndexByte(s, '%') >= 0 || strings.Contains(s, userPrefix))
}

// ReplaceSecret replaces each copy of the secret in s by replacement. The characters of a copy
// stand as they are or percent-encoded, once or more. The time is linear in the length of s.
func ReplaceSecret(s, secret, replacement string) string {
	if !strings.Contains(s, "%") {
		return strings.ReplaceAll(s, secret, replacement)
	}
	return replaceMatches(s, secret[0], replacement, func(s string) int { return matchCopy(s, secret) })
}

// replaceMatches replaces every match in s. match returns the length of the match at the start
// of its argument, or 0. A match begins with the byte first, in any case, or with a percent
// sign.
func replaceMatches(s string, first byte, replacement string, match func(string) int) string {
	var b strings.Builder
	done := 0
	for i := 0; i < len(s); {
		n := 0
		if c := s[i]; c == '%' || lower(c) == lower(first) {
			n = match(s[i:])
		}
		if n == 0 {
			i++
			continue
		}
		b.WriteString(s[done:i])
		b.WriteString(replacement)
		i += n
		done = i
	}
	if done == 0 {
		return s
	}
	b.WriteString(s[done:])
	return b.String()
}

// matchCopy returns how many bytes at the start of s encode a copy of the secret, or 0.
func matchCopy(s, secret string) int {
	at := 0
	for i := range len(secret) {
		n := matchByte(s[at:], secret[i])
		if n == 0 {
			return 0
		}
		at += n
	}
	return at
}

// matchSecret returns how many bytes at the start of s look like a secret, or 0.
func matchSecret(s string) int {
	const least, capitals = 6, "LK_"
	at := 0
	for i := range len(ownerPrefix) {
		n := max(matchByte(s[at:], ownerPrefix[i]), matchByte(s[at:], capitals[i]))
		if capitals[i] == 'K' && strings.HasPrefix(s[at:], kelvin) {
			n = len(kelvin)
		}
		if n == 0 {
			return 0
		}
		at += n
	}
	for i := 0; ; i++ {
		n := matchSecretByte(s[at:])
		if n == 0 {
			if i < least {
				return 0
			}
			return at
		}
		at += n
	}
}

// Two letters that are k and s in another case, to Unicode.
const (
	// Unicode lower-cases U+212A to k, and upper-cases U+017F to S.
	kelvin = "\u212a"
	longS  = "\u017f"
)

// matchByte returns how many bytes of s encode c, or 0. A byte stands as it is or
// percent-encoded, once or more.
func matchByte(s string, c byte) int {
	switch {
	case s == "":
		return 0
	case s[0] == c:
		return 1
	case s[0] != '%':
		return 0
	}
	n := 1
	for strings.HasPrefix(s[n:], "25") {
		n += 2
	}
	const hex = "0123456789abcdef"
	if len(s) < n+2 || lower(s[n]) != hex[c>>4] || lower(s[n+1]) != hex[c&15] {
		return 0
	}
	return n + 2
}

// matchSecretByte returns how many bytes of s encode a character of a secret, or 0. The digits
// of a character that is percent-encoded more than once count as characters.
func matchSecretByte(s string) int {
	switch {
	case s == "":
		return 0
	case userBytes[s[0]]:
		return 1
	case strings.HasPrefix(s, kelvin):
		return len(kelvin)
	case strings.HasPrefix(s, longS):
		return len(longS)
	case s[0] == '%' && len(s) > 2 && '2' <= s[1] && s[1] <= '7' && strings.IndexByte("0123456789abcdef", lower(s[2])) >= 0:
		return 3
	}
	return 0
}

func lower(c byte) byte {
	if 'A' <= c && c <= 'Z' {
		c += 'a' - 'A'
	}
	return c
}
