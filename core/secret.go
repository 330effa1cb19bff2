package core

import (
	"cmp"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"hash/crc32"
	"slices"
	"strings"

	"github.com/limitkeeper/limitkeeper/internal/bytetrie"
)

// DefaultKeyPrefix is the prefix of the keys of an account that has chosen no other. Every account accepts it.
const DefaultKeyPrefix = "lk_user_"

// The forms of the secrets.
const (
	ownerPrefix     = "lk_" // an owner's key: lk_ and ownerRandom letters or digits
	ownerRandom     = 29    // 32 characters in all
	userRandom      = 26    // of an end user's key, behind the prefix
	checksumLength  = 6     // at the end of an end user's key
	maxSecretLength = 256
	hintLength      = 4
)

// base62 holds the letters and digits of secrets. The index of a character is its value as a digit of a checksum.
const base62 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"

// Digest is the SHA-256 of a secret, the only form in which a secret is stored. Secrets have more
// than 150 random bits: no salt or stretching is needed.
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

// NewUserSecret returns a new random value of an end user's key: the prefix, 26 random letters or digits, and a checksum.
func NewUserSecret(prefix string) string {
	secret := prefix + random(userRandom)
	return secret + checksum(secret)
}

// checksum returns the CRC-32 (IEEE 802.3) of s as six base62 digits, the most significant first. The tokens of GitHub
// have the same form: https://github.blog/engineering/behind-githubs-new-authentication-token-formats. Secret scanners
// compare the checksum to tell a key from a text that only looks like one. A wrong checksum is no reason to refuse a key:
// keys of earlier versions have none.
func checksum(s string) string {
	var digits [checksumLength]byte
	for i, n := len(digits)-1, crc32.ChecksumIEEE([]byte(s)); i >= 0; i-- {
		digits[i] = base62[n%62]
		n /= 62
	}
	return string(digits[:])
}

// newID returns a new random identifier with the prefix, e.g. plan_….
func newID(prefix string) string { return prefix + random(20) }

// random returns n letters or digits, uniformly distributed. It rejects bytes that would favour the
// first letters.
func random(n int) string {
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

// WellFormedOwnerSecret reports whether s has the form of an owner's key.
func WellFormedOwnerSecret(s string) bool {
	return len(s) == len(ownerPrefix)+ownerRandom && strings.HasPrefix(s, ownerPrefix) &&
		ownerBytes.containsAll(s[len(ownerPrefix):])
}

// WellFormedUserSecret reports whether s has the form of the value of a key of any account: the default prefix or a prefix
// of an account of this process, and at least one letter, digit, _, - or =, at most 256 bytes in all.
// [Service.WellFormedKey] answers for one account.
func WellFormedUserSecret(s string) bool {
	if strings.HasPrefix(s, DefaultKeyPrefix) {
		return hasKeyForm(s, DefaultKeyPrefix)
	}
	prefix := knownPrefixes.Load().longest(s)
	return prefix != "" && hasKeyForm(s, prefix)
}

// hasKeyForm reports whether s has the form of the value of a key with the prefix.
func hasKeyForm(s, prefix string) bool {
	return len(s) > len(prefix) && len(s) <= maxSecretLength && strings.HasPrefix(s, prefix) &&
		userBytes.containsAll(s[len(prefix):])
}

// HasKeyCharacters reports whether s can be the value of a key of an account with [Account.AnyKeyForm]: 1 to 256 letters,
// digits, _, - or =.
func HasKeyCharacters(s string) bool { return hasKeyForm(s, "") }

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

// HintOf returns the part of a secret that is stored and shown: its prefix and its last four
// characters, e.g. lk_user_…wxyz. A secret of another system may have no known prefix.
func HintOf(secret string) string {
	prefix := knownPrefixes.Load().longest(secret)
	for _, p := range []string{ownerPrefix, DefaultKeyPrefix} {
		if strings.HasPrefix(secret, p) {
			prefix = p
		}
	}
	if len(secret) < len(prefix)+2*hintLength { // too short to show four characters
		return prefix + "…"
	}
	return prefix + "…" + secret[len(secret)-hintLength:]
}

// hintOfDigest returns the hint of a key whose value was never known: sha256_ and the last four digits of the digest.
func hintOfDigest(d Digest) string {
	digits := hex.EncodeToString(d[:])
	return "sha256_…" + digits[len(digits)-hintLength:]
}

// MaskSecrets replaces each text in s that looks like a secret, so that s can be stored and logged: lk_, or a prefix of an
// account of this process, followed by at least six of the characters A-Z a-z 0-9 _ = -. It ignores case. Each character may be
// percent-encoded (RFC 3986 section 2.1) once or more. A text without a percent sign, without lk_ in lower case and without
// such a prefix is returned as is. The time is linear in the length of s.
func MaskSecrets(s string) string {
	known := knownPrefixes.Load()
	switch {
	case !strings.Contains(s, ownerPrefix) && !strings.Contains(s, "%") && !known.occursIn(s):
		return s
	case known == nil:
		return replaceMatches(s, ownerFirst, matchOwnerPrefix)
	}
	return replaceMatches(s, &known.first, known.match)
}

// HoldsSecret reports whether s holds a secret: a text with lk_ that [MaskSecrets] masks, or a prefix of an account of this
// process with 32 letters or digits whose checksum is right. Use it to refuse a text. MaskSecrets masks more, because an
// account may choose a prefix with which ordinary words of another account begin.
func HoldsSecret(s string) bool {
	if (strings.Contains(s, ownerPrefix) || strings.Contains(s, "%")) && replaceMatches(s, ownerFirst, matchOwnerPrefix) != s {
		return true
	}
	known := knownPrefixes.Load()
	return known != nil && replaceMatches(s, &known.first, known.matchChecked) != s
}

// MayHoldUserSecret reports whether s may contain the value of a key, plain or percent-encoded. It
// is cheap, and false for most texts.
func MayHoldUserSecret(s string) bool {
	known := knownPrefixes.Load()
	if known == nil && len(s) <= len(DefaultKeyPrefix) {
		return false
	}
	return strings.IndexByte(s, '%') >= 0 || strings.Contains(s, DefaultKeyPrefix) || known.occursIn(s)
}

// ReplaceSecret replaces each copy of the secret in s by replacement. The characters of a copy
// stand as they are or percent-encoded, once or more. The time is linear in the length of s.
func ReplaceSecret(s, secret, replacement string) string {
	if !strings.Contains(s, "%") {
		return strings.ReplaceAll(s, secret, replacement)
	}
	first := byteSet{'%': true}
	first[secret[0]] = true
	return replaceMatches(s, &first, func(s string) (int, string) { return matchCopy(s, secret), replacement })
}

// replaceMatches replaces every match in s. match returns the length of the match at the start of its argument, or 0, and
// the text that replaces it. A match begins with a byte in first.
func replaceMatches(s string, first *byteSet, match func(string) (int, string)) string {
	var b strings.Builder
	done := 0
	for i := 0; i < len(s); {
		n, replacement := 0, ""
		if first[s[i]] {
			n, replacement = match(s[i:])
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

// ownerFirst holds the bytes with which lk_ may begin.
var ownerFirst = newByteSet("lL%")

// matchOwnerPrefix returns how many bytes at the start of s are lk_ and look like the rest of a secret, or 0.
func matchOwnerPrefix(s string) (int, string) {
	const capitals, masked = "LK_", ownerPrefix + "***"
	at := 0
	for i := range len(ownerPrefix) {
		n := max(matchByte(s[at:], ownerPrefix[i]), matchByte(s[at:], capitals[i]))
		if capitals[i] == 'K' && strings.HasPrefix(s[at:], kelvin) {
			n = len(kelvin)
		}
		if n == 0 {
			return 0, ""
		}
		at += n
	}
	n := matchSecretBytes(s[at:])
	if n == 0 {
		return 0, ""
	}
	return at + n, masked
}

// matchSecretBytes returns how many bytes at the start of s encode six or more characters of a secret, or 0.
func matchSecretBytes(s string) (at int) {
	const least = 6
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

// decodeByte returns the character at the start of s and how many bytes encode it: as it is, or percent-encoded once or
// more. It returns 0 bytes at the end of s and for a percent sign that encodes nothing.
func decodeByte(s string) (c byte, n int) {
	switch {
	case s == "":
		return 0, 0
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
		return 0, 0
	}
	if _, err := hex.Decode(decoded[:], []byte(s[n:n+2])); err != nil {
		return 0, 0
	}
	return decoded[0], n + 2
}

// prefixSet is a set of key prefixes. It never changes, so that a search needs no lock.
type prefixSet struct {
	first    byteSet        // the bytes with which lk_ or a prefix may begin, in any case and encoding
	forward  *bytetrie.Node // the prefixes
	backward *bytetrie.Node // the prefixes written backward
}

// with returns a set with another prefix.
func (set *prefixSet) with(prefix string) *prefixSet {
	c := prefixSet{first: *ownerFirst}
	if set != nil {
		c = *set
	}
	letter := prefix[0]
	c.first[letter], c.first[letter-'a'+'A'] = true, true
	switch letter {
	case 'k':
		c.first[kelvin[0]] = true
	case 's':
		c.first[longS[0]] = true
	}
	backward := []byte(prefix)
	slices.Reverse(backward)
	c.forward, c.backward = c.forward.With(prefix), c.backward.With(string(backward))
	return &c
}

// has reports whether the set has a prefix.
func (set *prefixSet) has(prefix string) bool {
	if set == nil {
		return false
	}
	n := set.forward
	for i := range len(prefix) {
		n = n.Next(prefix[i])
	}
	return n.Word() != ""
}

// longest returns the longest prefix in the set with which s begins, and which is shorter than s; "" for none.
func (set *prefixSet) longest(s string) (prefix string) {
	if set == nil {
		return ""
	}
	for n, i := set.forward, 0; n != nil && i < len(s); i++ {
		prefix = cmp.Or(n.Word(), prefix)
		n = n.Next(s[i])
	}
	return prefix
}

// occursIn reports whether s contains a prefix of the set, in any case and not percent-encoded.
func (set *prefixSet) occursIn(s string) bool {
	if set == nil {
		return false
	}
	for i := range len(s) {
		if s[i] == '_' && set.endsWith(s[:i+1]) {
			return true
		}
	}
	return false
}

// endsWith reports whether s ends with a prefix of the set, in any case and not percent-encoded. It reads at most 32 bytes.
func (set *prefixSet) endsWith(s string) bool {
	n := set.backward
	for i := len(s) - 1; i >= 0 && n != nil && n.Word() == ""; i-- {
		n = n.Next(lower(s[i]))
	}
	return n.Word() != ""
}

// match returns how many bytes at the start of s are lk_ or a prefix of the set and look like the rest of a secret, or 0,
// and the mask.
func (set *prefixSet) match(s string) (int, string) {
	if n, mask := matchOwnerPrefix(s); n > 0 {
		return n, mask
	}
	return set.matchPrefix(s, func(_, s string) int { return matchSecretBytes(s) })
}

// matchChecked returns how many bytes at the start of s are a key with a prefix of the set and the right checksum, or 0,
// and the mask.
func (set *prefixSet) matchChecked(s string) (int, string) { return set.matchPrefix(s, matchChecked) }

// matchPrefix returns how many bytes at the start of s are a prefix of the set and a rest, or 0, and the mask. rest returns
// how many bytes at the start of its second argument are the rest of a secret with a prefix.
func (set *prefixSet) matchPrefix(s string, rest func(prefix, s string) int) (int, string) {
	for n, at := set.forward, 0; ; {
		c, size := decodeByte(s[at:])
		if n = n.Next(lower(c)); n == nil {
			return 0, ""
		}
		at += size
		if n.Word() == "" {
			continue
		}
		if size := rest(n.Word(), s[at:]); size > 0 {
			return at + size, n.Word() + "***"
		}
	}
}

// matchChecked returns how many bytes at the start of s encode the random characters and the right checksum of a key, or 0.
func matchChecked(prefix, s string) (at int) {
	secret := []byte(prefix)
	for range userRandom + checksumLength {
		c, n := decodeByte(s[at:])
		if n == 0 || !ownerBytes[c] {
			return 0
		}
		secret = append(secret, c)
		at += n
	}
	body := secret[:len(secret)-checksumLength]
	if string(secret[len(body):]) != checksum(string(body)) {
		return 0
	}
	return at
}
