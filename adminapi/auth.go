package adminapi

import (
	"errors"
	"net/http"
	"strings"
	"unicode"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/secrets"
	"github.com/limitkeeper/limitkeeper/core/service"
)

// apiRealm is the protection space of the REST API (RFC 9110 section 11.5).
const apiRealm = "limitkeeper"

// authenticate sets the service, the owner's key and the account of the request.
func (c *call) authenticate() (err error) {
	secret, ok := bearer(c.r.Header)
	if !ok {
		return missingKey(c.r.Header)
	}
	if c.svc, err = c.service(); err != nil {
		return err
	}
	if c.owner, err = c.svc.Authenticate(c.ctx(), secret); err != nil {
		if errors.Is(err, service.ErrInvalidOwnerKey) && strings.HasPrefix(secret, secrets.DefaultKeyPrefix) {
			return errUserKey
		}
		return err
	}
	c.account = c.owner.AccountID
	return nil
}

// permit returns nil if the owner's key of the request has a permission.
func (c *call) permit(p core.Permission) error { return c.owner.ItsRole().Require(p) }

// missingKey returns the error for a request without a bearer token. It says where the owner's key belongs if the client sent it elsewhere.
func missingKey(h http.Header) error {
	for _, name := range []string{"Authorization", "X-Api-Key"} {
		if secrets.WellFormedOwnerSecret(strings.TrimSpace(h.Get(name))) {
			return errNoBearer
		}
	}
	return errUnauthorized
}

// bearer returns the token of the only Authorization header. The scheme Bearer is case-insensitive.
func bearer(h http.Header) (token string, ok bool) {
	values := h["Authorization"]
	if len(values) != 1 {
		return "", false
	}
	if token, ok := strings.CutPrefix(values[0], "Bearer "); ok && secrets.WellFormedOwnerSecret(token) { // fast path: nearly all clients
		return token, true
	}
	text := strings.TrimSpace(values[0])
	end := strings.IndexFunc(text, unicode.IsSpace)
	if end < 0 {
		return "", false
	}
	token = strings.TrimSpace(text[end:])
	return token, strings.EqualFold(text[:end], "Bearer") && !strings.ContainsFunc(token, unicode.IsSpace)
}

var escapeQuoted = strings.NewReplacer(`\`, `\\`, `"`, `\"`)

// SetChallenge sets WWW-Authenticate on a 401 answer (RFC 6750 section 3). The code UNAUTHORIZED means that the request
// has no credential. Every other code adds error="invalid_token".
func SetChallenge(h http.Header, realm string, code core.Code) {
	value := `Bearer realm="` + escapeQuoted.Replace(realm) + `"`
	if code != core.CodeUnauthorized {
		value += `, error="invalid_token"`
	}
	h.Set("WWW-Authenticate", value)
}
