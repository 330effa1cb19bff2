package core

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"slices"
	"time"
)

// A form is given out with a token that its session alone has, and is taken once: sent
// again it changes nothing. What was taken is noted in the session, so that every node
// knows.

// ErrForm means that a form was sent already, is too old, or is not one of this session.
var ErrForm = invalid("form", "This form was sent already, or is too old: see whether what it is for is done, and fill it in once more if not")

const (
	formNonce = 16 // bytes: the time in nanoseconds, then random ones
	maxSpent  = 50 // forms that a session remembers; older ones are not taken any more
)

// NewForm returns the token of a form.
func (s *Service) NewForm(who *SignedIn) string {
	nonce := make([]byte, formNonce, formNonce+sha256.Size)
	_, _ = rand.Read(nonce) // crypto/rand.Read never fails
	binary.BigEndian.PutUint64(nonce, uint64(s.clock().UnixNano()))
	return base64.RawURLEncoding.EncodeToString(who.seal(nonce))
}

// seal appends what only who has the session can make of b.
func (who *SignedIn) seal(b []byte) []byte {
	mac := hmac.New(sha256.New, []byte(who.secret))
	mac.Write(b)
	return mac.Sum(b)
}

// SpendForm takes a form by its token. One that was taken is [ErrForm].
func (s *Service) SpendForm(ctx context.Context, who *SignedIn, token string) error {
	b, err := base64.RawURLEncoding.Strict().DecodeString(token)
	if err != nil || len(b) != formNonce+sha256.Size || !hmac.Equal(who.seal(slices.Clone(b[:formNonce])), b) {
		return ErrForm
	}
	form := Form{ID: base64.RawURLEncoding.EncodeToString(b[:formNonce]), At: time.Unix(0, int64(binary.BigEndian.Uint64(b))).UTC()}
	_, err = s.store.UpdateAccess(ctx, who.Account.ID, func(ac *Access) error {
		now := s.now()
		se := ac.session(who.Session.Digest, now)
		switch {
		case se == nil:
			return ErrSession
		case !form.At.After(se.FormsFrom), now.Sub(form.At) >= SessionIdle, slices.Contains(se.Spent, form):
			return ErrForm
		}
		se.Spent = append(se.Spent, form)
		if len(se.Spent) > maxSpent {
			slices.SortFunc(se.Spent, func(a, b Form) int { return a.At.Compare(b.At) })
			se.FormsFrom = se.Spent[0].At
			se.Spent = slices.Delete(se.Spent, 0, 1)
		}
		return nil
	})
	return err
}
