package dashboard

import (
	"net/http"
	"net/url"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/signin"
)

// personRow is a person in the list.
type personRow struct {
	core.Person
	You bool // the person is signed in here
}

func peoplePage(q *request) error {
	people, err := q.svc.SignIn.People(q.r.Context(), q.account())
	if err != nil {
		return err
	}
	rows := make([]personRow, len(people))
	for i, p := range people {
		rows[i] = personRow{p, p.ID == q.signedIn.Person.ID}
	}
	return q.render(http.StatusOK, "people", "People", rows)
}

// person returns the person in the path.
func person(q *request) (*core.Person, error) {
	people, err := q.svc.SignIn.People(q.r.Context(), q.account())
	if err != nil {
		return nil, err
	}
	for i := range people {
		if people[i].ID == q.r.PathValue("id") {
			return &people[i], nil
		}
	}
	return nil, signin.ErrPersonNotFound
}

var newPersonPage = formPage[struct{}]{
	view: func(q *request, _ struct{}) (formView, error) {
		f := q.form("people", "Invite", "people",
			field{Name: "name", Label: "Name", Required: true, Autofocus: true, Hint: "As the others know this person."},
			field{Name: "email", Label: "Email", Type: "email", Required: true, Hint: "The person signs in with it."},
			field{Name: "role", Label: "Role", Type: "radio", Value: string(core.RoleViewer), Options: personRoles})
		return formView{Title: "Invite a person", Form: f, Text: "You get a link for the person, which sets a password. Limitkeeper sends no mail."}, nil
	},
	send: func(q *request, _ struct{}) error {
		post := q.r.PostForm
		p, secret, err := q.svc.SignIn.Invite(q.r.Context(), q.account(), core.PersonSpec{Name: post.Get("name"), Email: post.Get("email"), Role: core.Role(post.Get("role"))})
		if err != nil {
			return err
		}
		return q.showInvitation(p, secret)
	},
}

// showInvitation shows the link of an invitation, once.
func (q *request) showInvitation(p *core.Person, secret string) error {
	link := "https://" + q.r.Host + Base + "sign-in?" + url.Values{"link": {secret}}.Encode()
	return q.showSecret(newSecret{What: "invitation", Name: "the link for " + p.Name, Secret: link, Back: href("people"),
		Say: "Send it to " + p.Name + " over a channel that you trust. Whoever has it sets the password of " + p.Email + ", once, until " + when(p.Invitation.ExpiresAt) + "."})
}

var personLinkPage = formPage[*core.Person]{
	view: func(q *request, p *core.Person) (formView, error) {
		return formView{Title: "New link for “" + p.Name + "”?", Form: q.form("people/"+p.ID+"/link", "Make link", "people"), Points: []string{
			"The link sets a new password, once, within 7 days.",
			"An earlier link no longer works. The present password and sessions do, until the link is used."}}, nil
	},
	send: func(q *request, p *core.Person) error {
		p, secret, err := q.svc.SignIn.InviteAgain(q.r.Context(), q.account(), p.ID)
		if err != nil {
			return err
		}
		return q.showInvitation(p, secret)
	},
}

var personRolePage = formPage[*core.Person]{
	view: func(q *request, p *core.Person) (formView, error) {
		f := q.form("people/"+p.ID+"/role", "Save", "people", field{Name: "role", Label: "Role", Type: "radio", Value: string(p.Role), Options: personRoles})
		return formView{Title: "Role of " + p.Name, Form: f, Text: "It applies to the next page that " + p.Name + " opens."}, nil
	},
	send: func(q *request, p *core.Person) error {
		if _, err := q.svc.SignIn.SetRole(q.r.Context(), q.account(), p.ID, core.Role(q.r.PostForm.Get("role"))); err != nil {
			return err
		}
		return q.redirect("people?done=saved")
	},
}

var removePersonPage = formPage[*core.Person]{
	view: func(q *request, p *core.Person) (formView, error) {
		f := q.form("people/"+p.ID+"/remove", "Remove person", "people")
		f.Danger = true
		return formView{Title: "Remove “" + p.Name + "”?", Form: f, Points: []string{
			"Every session of " + p.Email + " ends at once, and an open invitation no longer works.",
			"What " + p.Name + " has changed stays as it is."}}, nil
	},
	send: func(q *request, p *core.Person) error {
		if err := q.svc.SignIn.RemovePerson(q.r.Context(), q.account(), p.ID); err != nil {
			return err
		}
		return q.redirect("people?done=removed")
	},
}

// Waits reports whether the person has an open invitation, and has never signed in.
func (r personRow) Waits() bool { return r.Invitation != nil && r.SeenAt.IsZero() }

// Until returns the end of the invitation.
func (r personRow) Until() time.Time { return r.Invitation.ExpiresAt }
