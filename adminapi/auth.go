package adminapi

import (
	"net/http"
	"strings"

	"github.com/limitkeeper/limitkeeper/core"
)

// The challenges of RFC 6750 section 3 that go with a 401.
const (
	challenge      = `Bearer realm="limitkeeper"`
	challengeWrong = challenge + `, error="invalid_token"`
)

// authenticate finds the account whose owner's key the request carries.
func (c *call) authenticate() (err error) {
	secret, ok := bearer(c.r.Header)
	if !ok {
		return errUnauthorized
	}
	if c.svc, err = c.service(); err != nil {
		return err
	}
	if c.owner, err = c.svc.Authenticate(c.ctx(), secret); err != nil {
		return err
	}
	c.account = c.owner.AccountID
	return nil
}

// bearer returns the token of the one Authorization header, whose scheme is Bearer
// in any case.
func bearer(h http.Header) (token string, ok bool) {
	values := h["Authorization"]
	if len(values) != 1 {
		return "", false
	}
	var words [2]string
	n := 0
	for word := range strings.FieldsSeq(values[0]) {
		if n == len(words) {
			return "", false
		}
		words[n] = word
		n++
	}
	return words[1], n == len(words) && strings.EqualFold(words[0], "Bearer")
}

// SetChallenge says what is wrong with the credential of a request that is answered
// with 401: that there is none, for the code UNAUTHORIZED, or that it is not good.
func SetChallenge(h http.Header, code core.Code) {
	value := challengeWrong
	if code == core.CodeUnauthorized {
		value = challenge
	}
	h.Set("WWW-Authenticate", value)
}
