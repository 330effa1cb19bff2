package secrets

import (
	"crypto/rand"
	"encoding/base64"
	"strings"
)

// SigningPrefix is the prefix of the secrets that sign deliveries to webhooks, see https://www.standardwebhooks.com.
const SigningPrefix = "whsec_"

// signingRandom is the number of random bytes in a signing secret. Standard Webhooks asks for 24 to 64.
const signingRandom = 24

// SigningSecret is the secret that signs deliveries to a webhook. Unlike other secrets it is stored in clear: an HMAC needs the value. Formatting it
// prints a mask; only its JSON has the value.
type SigningSecret string

// NewSigningSecret returns a new random signing secret: whsec_ and base64.
func NewSigningSecret() SigningSecret {
	var b [signingRandom]byte
	_, _ = rand.Read(b[:]) // crypto/rand.Read never fails
	return SigningSecret(SigningPrefix + base64.StdEncoding.EncodeToString(b[:]))
}

// String returns the mask of the secret.
func (s SigningSecret) String() string { return SigningPrefix + "***" }

// GoString returns the mask of the secret.
func (s SigningSecret) GoString() string { return s.String() }

// WellFormed reports whether the secret has the form of a signing secret: whsec_, and base64 of 24 to 64 bytes.
func (s SigningSecret) WellFormed() bool {
	text, ok := strings.CutPrefix(string(s), SigningPrefix)
	b, err := base64.StdEncoding.DecodeString(text)
	return ok && err == nil && len(b) >= signingRandom && len(b) <= 64
}
