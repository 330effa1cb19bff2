package core

import (
	"slices"
	"time"

	"github.com/limitkeeper/limitkeeper/core/secrets"
)

// The bounds of the ways to sign in.
const (
	SessionIdle = 12 * time.Hour       // a session ends after this time without use
	BrowserLife = 180 * 24 * time.Hour // how long a browser stays known after it signed in

	// Of an account; above it the oldest is dropped, or the session with the oldest use.
	MaxSessions = 20
	MaxLinks    = 20
	MaxBrowsers = 20
)

// Access holds the ways in which people sign in to an account.
type Access struct {
	Password string       `json:"password,omitempty"` // its argon2id hash in the PHC string format; "" for none
	Links    []SignInLink `json:"links,omitempty"`    // unused
	Sessions []Session    `json:"sessions,omitempty"`
	Browsers []Browser    `json:"browsers,omitempty"` // known browsers
}

// Browser is a browser that has signed in. Its secret does not sign in. The secret lets this
// browser try passwords after strangers have used up the bound of the account's name.
type Browser struct {
	Digest secrets.Digest `json:"digest"`  // of the secret in the browser
	SeenAt time.Time      `json:"seen_at"` // last sign-in
}

// SignInLink is a secret that may be used once in place of a password.
type SignInLink struct {
	Digest    secrets.Digest `json:"digest"`
	ExpiresAt time.Time      `json:"expires_at"`
}

// Known reports whether the browser has signed in within BrowserLife.
func (b Browser) Known(now time.Time) bool { return now.Before(b.SeenAt.Add(BrowserLife)) }

// DropExpired drops links, sessions and browsers that have expired.
func (ac *Access) DropExpired(now time.Time) {
	ac.Links = slices.DeleteFunc(ac.Links, func(l SignInLink) bool { return !now.Before(l.ExpiresAt) })
	ac.Sessions = slices.DeleteFunc(ac.Sessions, func(se Session) bool { return !se.alive(now) })
	ac.Browsers = slices.DeleteFunc(ac.Browsers, func(b Browser) bool { return !b.Known(now) })
}

// Session is a browser that is signed in.
type Session struct {
	Digest    secrets.Digest `json:"digest"` // of the secret in the browser
	ByLink    bool           `json:"by_link,omitempty"`
	CreatedAt time.Time      `json:"created_at"`
	SeenAt    time.Time      `json:"seen_at"` // last use, to 5 minutes

	SpentForms []FormToken `json:"spent,omitempty"`     // used tokens
	FormsAfter time.Time   `json:"forms_from,omitzero"` // tokens up to this time are refused
}

// FormToken is a form token that was used.
type FormToken struct {
	ID string    `json:"id"`
	At time.Time `json:"at"` // when the token was made
}

// MaxSpentForms bounds the used tokens in a session. Older tokens are refused.
const MaxSpentForms = 50

// LiveSession returns the session with a digest, nil if there is none or it has ended at the time now.
func (ac *Access) LiveSession(d secrets.Digest, now time.Time) *Session {
	for i := range ac.Sessions {
		if se := &ac.Sessions[i]; se.Digest.Equal(d) && se.alive(now) {
			return se
		}
	}
	return nil
}

func (se *Session) alive(now time.Time) bool { return now.Before(se.SeenAt.Add(SessionIdle)) }
