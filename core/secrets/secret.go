package secrets

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"hash/crc32"
	"strings"
)

// DefaultKeyPrefix is the prefix of the keys of an account that has chosen no other. Every account accepts it.
const DefaultKeyPrefix = "lk_user_"

// The forms of the secrets.
const (
	OwnerPrefix    = "lk_" // an owner's key: lk_ and ownerRandom letters or digits
	ownerRandom    = 29    // 32 characters in all
	userRandom     = 26    // of an end user's key, behind the prefix
	checksumLength = 6     // at the end of an end user's key
	MaxLength      = 256   // bytes of any secret
	HintLength     = 4     // the last characters of a secret that a hint shows
)

// MaxPrefix bounds a prefix of keys, in bytes.
const MaxPrefix = 32

// base62 holds the letters and digits of secrets. The index of a character is its value as a digit of a checksum.
const base62 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"

// Digest is the SHA-256 of a secret, the only form in which a secret is stored. Secrets have more
// than 150 random bits: no salt or stretching is needed.
type Digest [sha256.Size]byte

// DigestOf returns the digest of a secret.
func DigestOf(secret string) Digest {
	var buf [MaxLength]byte // a conversion would allocate
	if len(secret) > len(buf) {
		return sha256.Sum256([]byte(secret))
	}
	return sha256.Sum256(buf[:copy(buf[:], secret)])
}

// Equal compares digests in constant time.
func (d Digest) Equal(other Digest) bool { return subtle.ConstantTimeCompare(d[:], other[:]) == 1 }

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

// ParseDigest reads a digest in hexadecimal digits, or in base64 with either alphabet, padded or not.
func ParseDigest(text string) (d Digest, ok bool) {
	if d.UnmarshalText([]byte(text)) == nil {
		return d, true
	}
	standard := strings.NewReplacer("-", "+", "_", "/").Replace(strings.TrimRight(text, "="))
	b, err := base64.RawStdEncoding.Strict().DecodeString(standard)
	return Digest(append(b, make([]byte, len(d))...)[:len(d)]), err == nil && len(b) == len(d)
}

// NewOwnerSecret returns a new random owner's key: 32 characters that begin with
// lk_.
func NewOwnerSecret() string { return OwnerPrefix + Random(ownerRandom) }

// NewUserSecret returns a new random value of an end user's key: the prefix, 26 random letters or digits, and a checksum.
func NewUserSecret(prefix string) string {
	secret := prefix + Random(userRandom)
	return secret + Checksum(secret)
}

// Checksum returns the CRC-32 (IEEE 802.3) of s as six base62 digits, the most significant first. The tokens of GitHub
// have the same form: https://github.blog/engineering/behind-githubs-new-authentication-token-formats. Secret scanners
// compare the checksum to tell a key from a text that only looks like one. A wrong checksum is no reason to refuse a key:
// keys of earlier versions have none.
func Checksum(s string) string {
	var digits [checksumLength]byte
	for i, n := len(digits)-1, crc32.ChecksumIEEE([]byte(s)); i >= 0; i-- {
		digits[i] = base62[n%62]
		n /= 62
	}
	return string(digits[:])
}

// checksumValue returns the number that the base62 digits of a checksum stand for.
func checksumValue(digits []byte) (n uint64) {
	for _, c := range digits {
		n = n*62 + uint64(strings.IndexByte(base62, c))
	}
	return n
}

// NewID returns a new random identifier with the prefix, e.g. plan_….
func NewID(prefix string) string { return prefix + Random(20) }

// Random returns n letters or digits, uniformly distributed. It rejects bytes that would favour the
// first letters.
func Random(n int) string {
	const unbiased = 256 - 256%len(base62)
	out := make([]byte, 0, n)
	var buf [64]byte
	for len(out) < n {
		_, _ = rand.Read(buf[:]) // crypto/rand.Read never fails
		for _, b := range buf {
			if int(b) < unbiased && len(out) < n {
				out = append(out, base62[int(b)%len(base62)])
			}
		}
	}
	return string(out)
}

// IsRandom reports whether s has only characters that Random returns: letters and digits.
func IsRandom(s string) bool { return ownerBytes.containsAll(s) }

// WellFormedOwnerSecret reports whether s has the form of an owner's key.
func WellFormedOwnerSecret(s string) bool {
	return len(s) == len(OwnerPrefix)+ownerRandom && strings.HasPrefix(s, OwnerPrefix) &&
		IsRandom(s[len(OwnerPrefix):])
}

// WellFormedUserSecret reports whether s has the form of the value of a key with [DefaultKeyPrefix], which every account
// accepts: the prefix and at least one letter, digit, _, - or =, at most 256 bytes in all. An account may
// have other prefixes, too.
func WellFormedUserSecret(s string) bool { return HasForm(s, DefaultKeyPrefix) }

// HasForm reports whether s has the form of the value of a key with the prefix.
func HasForm(s, prefix string) bool {
	return len(s) > len(prefix) && len(s) <= MaxLength && strings.HasPrefix(s, prefix) &&
		userBytes.containsAll(s[len(prefix):])
}

// HasKeyCharacters reports whether s can be the value of a key of any prefix or none: 1 to 256 letters, digits, _, - or =.
func HasKeyCharacters(s string) bool { return HasForm(s, "") }

// byteSet is a set of bytes.
type byteSet [256]bool

// The characters of secrets behind their prefixes.
var ownerBytes, userBytes = newByteSet(base62), newByteSet(base62 + "_-=")

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

// HintOf returns the part of a secret that is stored and shown: its prefix and its last four characters, such as
// lk_user_…wxyz. The prefix is lk_, [DefaultKeyPrefix] or one of prefixes, the longest that fits; "" for a secret of another
// system.
func HintOf(secret string, prefixes ...string) string {
	prefix := ""
	for _, p := range append(prefixes, OwnerPrefix, DefaultKeyPrefix) {
		if len(p) > len(prefix) && strings.HasPrefix(secret, p) {
			prefix = p
		}
	}
	if len(secret) < len(prefix)+2*HintLength { // too short to show four characters
		return prefix + "…"
	}
	return prefix + "…" + secret[len(secret)-HintLength:]
}

// HintOfDigest returns the hint of a key whose value was never known: sha256_ and the last four digits of the digest.
func HintOfDigest(d Digest) string {
	digits := hex.EncodeToString(d[:])
	return "sha256_…" + digits[len(digits)-HintLength:]
}
