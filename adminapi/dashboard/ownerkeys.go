package dashboard

import (
	"errors"
	"net/http"
	"slices"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/service"
)

// ownerKeyRow is an owner's key in the list.
type ownerKeyRow struct {
	*core.OwnerKey
	Works bool
}

// newSecret is the data of a page that shows a new secret once.
type newSecret struct {
	What, Name, Secret string
	Signs              bool   // the server keeps the secret, because the secret signs
	Say                string // the fate of the old key, "" for none
	Back               string // URL of the next page
}

func ownerKeysPage(q *request) error {
	var all []ownerKeyRow // oldest first
	list := func(p core.Page) ([]*core.OwnerKey, int, error) {
		return q.svc.OwnerKeys(q.r.Context(), q.account(), p)
	}
	err := core.Each(q.r.Context(), core.ReadSize, list, func(k *core.OwnerKey) error {
		all = append(all, ownerKeyRow{k, k.InForce(q.svc.Now())})
		return nil
	})
	if err != nil {
		return err
	}
	slices.Reverse(all)
	p := q.page()
	rows := all[min(p.Offset(), len(all)):]
	rows = rows[:min(p.Size, len(rows))]
	return q.render(http.StatusOK, "owner-keys", "Owner's keys", listView{Rows: rows, Pager: q.pager(p, len(rows), len(all), p.Offset()+len(rows) < len(all))})
}

// The options of the field "role" in forms.
var (
	personRoles = []option{
		{string(core.RoleViewer), "Viewer", "Sees everything but secrets."},
		{string(core.RoleSupport), "Support", "Also adjusts usage and disables keys."},
		{string(core.RoleEditor), "Editor", "Also changes plans, prices, users, keys and webhooks."},
		{string(core.RoleOwner), "Owner", "Everything, also the account, its people and its owner’s keys."}}
	keyRoles = append([]option{{string(core.RoleValidator), "Validator", "Validates requests and ends their holds. Reads nothing."}}, personRoles...)
)

var newOwnerKeyPage = formPage[struct{}]{view: newOwnerKeyForm, send: createOwnerKey}

func newOwnerKeyForm(q *request, _ struct{}) (formView, error) {
	f := q.form("owner-keys", "Create key", "owner-keys",
		field{Name: "name", Label: "Name", Required: true, Autofocus: true, Hint: "What the key is for, as in “production server”. Only you see it."},
		field{Name: "role", Label: "Role", Type: "radio", Value: string(core.RoleOwner), Options: keyRoles},
		field{Name: "expires_at", Label: "Expires at", Type: "datetime-local", Hint: "In UTC. Empty for never."})
	return formView{Title: "New owner's key", Form: f,
		Text: "An owner's key lets your own programs use the REST API of this account: create users and keys, and ask whether a request is allowed."}, nil
}

func createOwnerKey(q *request, _ struct{}) error {
	post := q.r.PostForm
	spec := core.OwnerKeySpec{Name: post.Get("name"), Role: core.Role(post.Get("role"))}
	if text := trimmed(post.Get("expires_at")); text != "" {
		at, err := parseLocalTime("expires_at", text)
		if err != nil {
			return err
		}
		spec.ExpiresAt = &at
	}
	k, secret, err := q.svc.CreateOwnerKey(q.r.Context(), q.account(), spec)
	if err != nil {
		return err
	}
	return q.showSecret(newSecret{What: "owner's key", Name: k.Name, Secret: secret, Back: href("owner-keys")})
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

func ownerKeyRegeneration(q *request) (*regeneration, error) {
	k, err := q.ownerKey()
	if err != nil {
		return nil, err
	}
	return &regeneration{path: "owner-keys/" + k.ID, back: "owner-keys", what: "owner's key", name: k.Name, hint: k.Hint, graces: graces, first: "keep", longest: service.MaxOwnerGrace,
		text: "You get a new key in place of " + k.Hint + ", with the same name. It is shown once.",
		do: func(grace time.Duration) (secret string, err error) {
			_, secret, err = q.svc.RegenerateOwnerKey(q.r.Context(), q.account(), k.ID, grace)
			return secret, err
		}}, nil
}

func revokeOwnerKeyPage(q *request) error {
	k, err := q.ownerKey()
	if errors.Is(err, core.ErrOwnerKeyRevoked) {
		return q.redirect("owner-keys")
	}
	if err != nil {
		return err
	}
	f := q.form("owner-keys/"+k.ID+"/revoke", "Revoke key", "owner-keys")
	f.Danger = true
	return q.showForm(http.StatusOK, formView{Title: "Revoke “" + k.Name + "”?", Form: f, Points: []string{
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
