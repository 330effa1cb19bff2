package core

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"regexp"
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

// Digest is the SHA-256 of a secret. It is the only form of a secret that is
// stored: the secrets are random with more than 170 bits, so that neither salt
// nor stretching is needed to make them unguessable from it.
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

// random returns n letters or digits, each uniformly distributed: bytes that
// would favour the first letters are thrown away.
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
		ownerBytes.hold(s[len(ownerPrefix):])
}

// WellFormedUserSecret reports whether s can be an end user's key at all: it
// begins with lk_user_, has something after it, is at most 256 characters long
// and holds nothing but letters, digits, _, - and =.
func WellFormedUserSecret(s string) bool {
	if len(s) <= len(userPrefix) || len(s) > maxSecretLength || !strings.HasPrefix(s, userPrefix) {
		return false
	}
	return userBytes.hold(s[len(userPrefix):])
}

// bytesOf is a set of bytes.
type bytesOf [256]bool

// What the secrets are made of behind their prefixes.
var ownerBytes, userBytes = newBytesOf(alphanumeric), newBytesOf(alphanumeric + "_-=")

func newBytesOf(s string) *bytesOf {
	var set bytesOf
	for _, b := range []byte(s) {
		set[b] = true
	}
	return &set
}

// hold reports whether s is made of nothing else.
func (set *bytesOf) hold(s string) bool {
	for i := range len(s) {
		if !set[s[i]] {
			return false
		}
	}
	return true
}

// HintOf returns what may be shown of a secret for good: its prefix and its last
// four characters, e.g. lk_user_…wxyz.
func HintOf(secret string) string {
	prefix := ownerPrefix
	if strings.HasPrefix(secret, userPrefix) {
		prefix = userPrefix
	}
	if len(secret) < len(prefix)+2*hintLength { // the last four would be too much of it
		return prefix + "…"
	}
	return prefix + "…" + secret[len(secret)-hintLength:]
}

// secretPattern is lk_ and more of what secrets are made of, each character as it is
// or percent-encoded (RFC 3986 section 2.1), also more than once.
var secretPattern = regexp.MustCompile(`(?i)(?:l|%(?:25)*[46]c)(?:k|%(?:25)*[46]b)(?:_|%(?:25)*5f)(?:[a-z0-9_=-]|%(?:25)*[2-7][0-9a-f]){6,}`)

// MaskSecrets replaces whatever looks like one of our secrets in s, percent-encoded
// or not, so that it can be stored and logged.
func MaskSecrets(s string) string {
	if !strings.Contains(s, ownerPrefix) && !strings.Contains(s, "%") || !beginsSecret(s) {
		return s
	}
	return secretPattern.ReplaceAllString(s, "lk_***")
}

// beginsSecret reports whether the prefix of a secret is anywhere in s, as
// secretPattern would find it. Escapes are common in what is accessed, secrets are
// not, and the pattern takes a hundred times as long.
func beginsSecret(s string) bool {
	for i := range len(s) {
		if c := s[i]; c != '%' && lower(c) != ownerPrefix[0] {
			continue
		}
		at := i
		for _, want := range []byte(ownerPrefix) {
			c, length := unescaped(s[at:])
			if c != want {
				break
			}
			at += length
			if want == '_' {
				return true
			}
		}
	}
	return false
}

// unescaped returns the character that s begins with, in lower case, and how many
// bytes it takes: as it is, or percent-encoded once or more.
func unescaped(s string) (c byte, length int) {
	if s == "" {
		return 0, 0
	}
	const kelvin = "\u212a" // which is a k in another case, to Unicode and to the pattern
	if strings.HasPrefix(s, kelvin) {
		return 'k', len(kelvin)
	}
	if s[0] != '%' {
		return lower(s[0]), 1
	}
	length = 1
	for strings.HasPrefix(s[length:], "25") {
		length += 2
	}
	if len(s) < length+2 {
		return '%', 1
	}
	switch strings.ToLower(s[length : length+2]) {
	case "4c", "6c":
		return 'l', length + 2
	case "4b", "6b":
		return 'k', length + 2
	case "5f":
		return '_', length + 2
	}
	return '%', 1
}

func lower(c byte) byte {
	if 'A' <= c && c <= 'Z' {
		c += 'a' - 'A'
	}
	return c
}
