package core

import (
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/limitkeeper/limitkeeper/core/secrets"
)

// The bounds of the ways to sign in.
const (
	SessionIdle = 12 * time.Hour       // a session ends after this time without use
	BrowserLife = 180 * 24 * time.Hour // how long a browser stays known after it signed in

	MaxSessionsEach = 20 // of a person, or of the account's own sign-in; above it the session with the oldest use is dropped
	MaxBrowsersEach = 20 // of a person, or of the account's own sign-in; above it the browser with the oldest sign-in is dropped
	MaxSessions     = 50 // of an account; above it the session with the oldest use is dropped
	MaxBrowsers     = 60 // of an account; above it the browser with the oldest sign-in is dropped
	MaxLinks        = 20 // of an account; above it the oldest is dropped
)

// Access holds the ways to sign in to an account. The links and the password of the account are the account's own sign-in. It acts as an owner
// and is not a person. The record of an Access within all bounds has less than 256 KiB.
type Access struct {
	Password string       `json:"password,omitempty"` // of the account's own sign-in: its argon2id hash in the PHC string format; "" for none
	Links    []SignInLink `json:"links,omitempty"`    // unused
	People   []Person     `json:"people,omitempty"`   // in the order of creation
	Sessions []Session    `json:"sessions,omitempty"`
	Browsers []Browser    `json:"browsers,omitempty"` // known browsers
}

// Browser is a browser that has signed in. Its secret does not sign in. The secret lets this
// browser try passwords after strangers have used up the bound of the account's name.
type Browser struct {
	Digest secrets.Digest `json:"digest"`  // of the secret in the browser
	SeenAt time.Time      `json:"seen_at"` // last sign-in

	PersonID string `json:"person_id,omitempty"` // the person that signed in; "": the account's own sign-in
}

// SignInLink is a secret that may be used once in place of a password.
type SignInLink struct {
	Digest    secrets.Digest `json:"digest"`
	ExpiresAt time.Time      `json:"expires_at"`
}

// Known reports whether the browser has signed in within BrowserLife.
func (b Browser) Known(now time.Time) bool { return now.Before(b.SeenAt.Add(BrowserLife)) }

// DropExpired drops links, invitations, sessions and browsers that have expired.
func (ac *Access) DropExpired(now time.Time) {
	ac.Links = slices.DeleteFunc(ac.Links, func(l SignInLink) bool { return !now.Before(l.ExpiresAt) })
	for i := range ac.People {
		if p := &ac.People[i]; p.Invitation != nil && !now.Before(p.Invitation.ExpiresAt) {
			p.Invitation = nil
		}
	}
	ac.Sessions = slices.DeleteFunc(ac.Sessions, func(se Session) bool { return !se.alive(now) })
	ac.Browsers = slices.DeleteFunc(ac.Browsers, func(b Browser) bool { return !b.Known(now) })
}

// Session is a browser that is signed in.
type Session struct {
	Digest    secrets.Digest `json:"digest"`              // of the secret in the browser
	PersonID  string         `json:"person_id,omitempty"` // the person that is signed in; "": the account's own sign-in
	ByLink    bool           `json:"by_link,omitempty"`
	ByServer  bool           `json:"by_server,omitempty"` // the server has authenticated the person
	CreatedAt time.Time      `json:"created_at"`
	SeenAt    time.Time      `json:"seen_at"` // last use, to 5 minutes

	Address   string `json:"address,omitempty"`    // of the browser at the sign-in
	UserAgent string `json:"user_agent,omitempty"` // of the browser, see [CleanUserAgent]

	SpentForms []FormToken `json:"spent,omitempty"`     // used tokens
	FormsAfter time.Time   `json:"forms_from,omitzero"` // tokens up to this time are refused
}

// FormToken is a form token that was used.
type FormToken struct {
	ID string    `json:"id"`
	At time.Time `json:"at"` // when the token was made
}

// MaxSpentForms bounds the used tokens in a session. Older tokens are refused.
const MaxSpentForms = 30

// maxUserAgent is the largest length of a stored User-Agent in bytes.
const maxUserAgent = 128

// CleanUserAgent returns the User-Agent of a browser as a session keeps it: its first 128 characters among letters, digits, spaces
// and ./;:()_,+-
func CleanUserAgent(text string) string {
	var b strings.Builder
	for _, r := range text {
		if b.Len() == maxUserAgent {
			break
		}
		if r < utf8.RuneSelf && (unicode.IsLetter(r) || unicode.IsDigit(r) || strings.ContainsRune(" ./;:()_,+-", r)) {
			b.WriteRune(r)
		}
	}
	return b.String()
}

// AddSession adds a session. Above the bounds the session with the oldest use is dropped.
func (ac *Access) AddSession(se Session) {
	ac.Sessions = appendBounded(ac.Sessions, se, func(se Session) (string, time.Time) { return se.PersonID, se.SeenAt }, MaxSessionsEach, MaxSessions)
}

// AddBrowser adds a known browser in place of an earlier one. Above the bounds the browser with the oldest sign-in is dropped.
func (ac *Access) AddBrowser(b Browser, before secrets.Digest) {
	ac.Browsers = slices.DeleteFunc(ac.Browsers, func(b Browser) bool { return b.Digest.Equal(before) })
	ac.Browsers = appendBounded(ac.Browsers, b, func(b Browser) (string, time.Time) { return b.PersonID, b.SeenAt }, MaxBrowsersEach, MaxBrowsers)
}

// appendBounded appends v to a list. If the person of v has each elements or more, the oldest of them is dropped first; then, if the list has most
// elements or more, the oldest of all. of returns the person of an element and when the element was last used.
func appendBounded[T any](list []T, v T, of func(T) (person string, seen time.Time), each, most int) []T {
	person, _ := of(v)
	drop := func(anybody bool, most int) {
		oldest, n := -1, 0
		for i := range list {
			who, seen := of(list[i])
			if !anybody && who != person {
				continue
			}
			n++
			if oldest < 0 {
				oldest = i
			} else if _, at := of(list[oldest]); seen.Before(at) {
				oldest = i
			}
		}
		if n >= most {
			list = slices.Delete(list, oldest, oldest+1)
		}
	}
	drop(false, each)
	drop(true, most)
	return append(list, v)
}

// EndSessions ends the sessions and forgets the browsers of the people that of accepts; "" is the account's own sign-in.
func (ac *Access) EndSessions(of func(person string) bool) {
	ac.Sessions = slices.DeleteFunc(ac.Sessions, func(se Session) bool { return of(se.PersonID) })
	ac.Browsers = slices.DeleteFunc(ac.Browsers, func(b Browser) bool { return of(b.PersonID) })
}

// LiveSession returns the session with a digest, nil if there is none or the session has ended at the time now. The session of a missing person
// has ended.
func (ac *Access) LiveSession(d secrets.Digest, now time.Time) *Session {
	for i := range ac.Sessions {
		if se := &ac.Sessions[i]; se.Digest.Equal(d) && se.alive(now) && ac.PasswordOf(se.PersonID) != nil {
			return se
		}
	}
	return nil
}

func (se *Session) alive(now time.Time) bool { return now.Before(se.SeenAt.Add(SessionIdle)) }
