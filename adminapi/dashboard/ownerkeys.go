package dashboard

import (
	"errors"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
)

type ownerKeysView struct {
	Keys  []*core.OwnerKey // newest first
	Pager pager
	Now   time.Time
}

// newSecret is the data of a page that shows a new secret once.
type newSecret struct {
	What, Name, Secret string
	Say                string // the fate of the old key, "" for none
	Back               string // URL of the next page
}

func ownerKeysPage(q *request) error {
	p := q.page()
	// The page lists the newest keys first, the store lists them last.
	_, total, err := q.svc.OwnerKeys(q.r.Context(), q.account(), onlyOne)
	if err != nil {
		return err
	}
	keys, err := newestFirst(p, total, func(p core.Page) ([]*core.OwnerKey, int, error) {
		return q.svc.OwnerKeys(q.r.Context(), q.account(), p)
	})
	if err != nil {
		return err
	}
	return q.render(http.StatusOK, "owner-keys", "Owner's keys", ownerKeysView{Keys: keys, Now: q.svc.Now(),
		Pager: q.pager(p, len(keys), total, p.Offset()+len(keys) < total)})
}

// newestFirst returns a page of a list in reverse order of the store.
func newestFirst[T any](p core.Page, total int, list func(core.Page) ([]T, int, error)) ([]T, error) {
	end := total - p.Offset()
	begin := max(0, end-p.Size)
	var items []T
	for n := begin/p.Size + 1; (n-1)*p.Size < end; n++ {
		some, _, err := list(core.Page{Number: n, Size: p.Size})
		if err != nil {
			return nil, err
		}
		for i, item := range some {
			if at := (n-1)*p.Size + i; at >= begin && at < end {
				items = append([]T{item}, items...)
			}
		}
	}
	return items, nil
}

func newOwnerKeyPage(q *request) error {
	return q.newOwnerKeyForm(http.StatusOK, url.Values{}.Get, nil)
}

func (q *request) newOwnerKeyForm(status int, value func(string) string, fault error) error {
	f := q.form("owner-keys", "Create key", "owner-keys", []field{{Name: "name", Label: "Name", Value: value("name"), Required: true, Autofocus: true,
		Hint: "What the key is for, as in “production server”. Only you see it."}}, fault)
	return q.showForm(status, "New owner's key", formView{Form: f,
		Text: "An owner's key lets your own programs use the REST API of this account: create users and keys, and ask whether a request is allowed."})
}

func createOwnerKey(q *request) error {
	k, secret, err := q.svc.CreateOwnerKey(q.r.Context(), q.account(), q.r.PostForm.Get("name"))
	return q.finish(err, q.newOwnerKeyForm, func() error {
		return q.showSecret(newSecret{What: "owner's key", Name: k.Name, Secret: secret, Back: href("owner-keys")})
	})
}

func (q *request) showSecret(n newSecret) error {
	return q.render(http.StatusOK, "secret", "Your new "+n.What, n)
}

// ownerKey returns the owner's key in the path, or an error if it is revoked or expired.
func (q *request) ownerKey() (*core.OwnerKey, error) {
	k, err := q.svc.OwnerKey(q.r.Context(), q.account(), q.r.PathValue("id"))
	if err == nil && !k.InForce(q.svc.Now()) {
		return nil, core.ErrOwnerKeyRevoked
	}
	return k, err
}

// graces are the choices for the old value of a regenerated owner's key.
var graces = []option{
	{"keep", "It keeps working until you revoke it", "Your application is not affected. Replace the key there when it suits you."},
	{"3600", "It stops in an hour", "Replace it in your application before."},
	{"86400", "It stops in a day", "Replace it in your application before."},
	{"604800", "It stops in a week", "Replace it in your application before."},
	{"0", "It stops now", "The next request with it is refused. For a key that someone else has seen."},
}

func regenerateOwnerKeyPage(q *request, k *core.OwnerKey) error {
	f := q.form("owner-keys/"+k.ID+"/regenerate", "Regenerate", "owner-keys", []field{
		{Name: "grace", Label: "Expire the old key", Type: "radio", Value: "keep", Options: graces}}, nil)
	return q.showForm(http.StatusOK, "Regenerate “"+k.Name+"”", formView{Form: f,
		Text: "You get a new key in place of " + k.Hint + ", with the same name. It is shown once."})
}

func regenerateOwnerKey(q *request, k *core.OwnerKey) (err error) {
	grace, say := time.Duration(-1), "The old key "+k.Hint+" keeps working until you revoke it."
	if q.r.PostForm.Get("grace") != "keep" {
		if grace, say, err = q.grace(k.Hint, core.MaxOwnerGrace); err != nil {
			return err
		}
	}
	_, secret, err := q.svc.RegenerateOwnerKey(q.r.Context(), q.account(), k.ID, grace)
	if err != nil {
		return err
	}
	return q.showSecret(newSecret{What: "owner's key", Name: k.Name, Secret: secret, Say: say, Back: href("owner-keys")})
}

// grace returns the chosen time that the old value still works, and a sentence about it.
func (q *request) grace(hint string, longest time.Duration) (grace time.Duration, say string, err error) {
	seconds, err := strconv.ParseInt(q.r.PostForm.Get("grace"), 10, 64)
	switch {
	case err != nil || seconds < 0 || seconds > int64(longest/time.Second):
		return 0, "", errChoice
	case seconds == 0:
		return 0, "The old key " + hint + " has stopped working.", nil
	}
	grace = time.Duration(seconds) * time.Second
	return grace, "The old key " + hint + " works until " + when(q.svc.Now().Add(grace)) + ".", nil
}

var errChoice = &core.Error{Code: core.CodeInvalidRequest, Message: "There is no such choice"}

func revokeOwnerKeyPage(q *request) error {
	k, err := q.ownerKey()
	if errors.Is(err, core.ErrOwnerKeyRevoked) {
		return q.redirect("owner-keys")
	}
	if err != nil {
		return err
	}
	f := q.form("owner-keys/"+k.ID+"/revoke", "Revoke key", "owner-keys", nil, nil)
	f.Danger = true
	return q.showForm(http.StatusOK, "Revoke “"+k.Name+"”?", formView{Form: f, Points: []string{
		"The next request with " + k.Hint + " is refused, on every server.",
		"It cannot be taken back: a new key has to be made instead.",
		"Users, plans, keys and what they used stay as they are."}})
}

func revokeOwnerKey(q *request) error {
	if _, err := q.svc.RevokeOwnerKey(q.r.Context(), q.account(), q.r.PathValue("id")); err != nil {
		return err
	}
	return q.redirect("owner-keys?done=revoked")
}
