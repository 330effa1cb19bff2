package dashboard

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/signin"
)

type form struct {
	Action string // URL of the POST request
	Token  string // accepted once by the server
	Submit string // text of the submit button, "" for no button
	Danger bool   // the button destroys something
	Cancel string // URL of the link "Cancel", "" for no link
	Hidden []hidden
	Fields []field
	Fault  string // error that belongs to no field
}

type hidden struct{ Name, Value string }

type field struct {
	Name, Label  string
	Type         string // type of the input, or select, textarea or radio; default text
	Value        string
	Hint         string
	Fault        string
	Options      []option // of a select or radio field
	Plans        string   // text of the option without a plan, of a select field with the plans as options
	Required     bool
	Autofocus    bool
	Autocomplete string
	Min, Max     string // of a number field
	MinLength    int
	Placeholder  string
}

// option is a choice of a select or radio field.
type option struct{ Value, Label, Hint string }

type formView struct {
	Title  string
	Text   string
	Points []string // consequences of submitting, as a list
	Form   form
}

// formPage is a page with a single form about a T.
type formPage[T any] struct {
	view func(*request, T) (formView, error) // with the first values of the fields
	send func(*request, T) error             // does what the form says, and answers
}

// get answers with the page.
func (p formPage[T]) get(q *request, v T) error { return p.show(q, v, http.StatusOK, nil) }

// post does what the posted form says. For an error that the user can correct it shows the form again with the posted values.
func (p formPage[T]) post(q *request, v T) error {
	err := p.send(q, v)
	if status, ok := formStatus(err); ok {
		return p.show(q, v, status, err)
	}
	return err
}

func (p formPage[T]) show(q *request, v T, status int, fault error) error {
	page, err := p.view(q, v)
	if err != nil {
		return err
	}
	for i := range page.Form.Fields {
		f := &page.Form.Fields[i]
		if fault != nil {
			f.Value = q.r.PostForm.Get(f.Name)
		}
		if f.Plans == "" {
			continue
		}
		if f.Options, err = q.planOptions(f.Plans, f.Value, false); err != nil {
			return err
		}
	}
	page.Form.setFault(fault)
	return q.showForm(status, page)
}

// showForm answers with a page with a single form.
func (q *request) showForm(status int, v formView) error { return q.render(status, "form", v.Title, v) }

// token returns a token for the forms of a page. The server accepts only one of them.
func (q *request) token() string { return q.svc.SignIn.NewFormToken(q.signedIn) }

// form returns a form that posts to a path below Base. cancel is the path of the link "Cancel", "" for no link.
func (q *request) form(action, submit, cancel string, fields ...field) form {
	f := form{Action: Base + action, Token: q.token(), Submit: submit, Fields: fields}
	if cancel != "" {
		f.Cancel = Base + cancel
	}
	return f
}

// setFault shows an error, nil for none: an error of one field at that field.
func (f *form) setFault(fault error) {
	if e, ok := errors.AsType[*core.Error](fault); ok {
		for i := range f.Fields {
			if f.Fields[i].Name == e.Field {
				f.Fields[i].Fault = e.Detail
				return
			}
		}
	}
	f.Fault = errorText(fault)
}

// errorText returns the text of an error for a form, "" for nil.
func errorText(err error) string {
	e, ok := errors.AsType[*core.Error](err)
	switch {
	case err == nil || !ok:
		return ""
	case e.Detail != "":
		return e.Detail
	}
	return e.Message
}

// formStatus returns the status of an error that the user can correct in the form. ok is false for
// every other error.
func formStatus(err error) (status int, ok bool) {
	e, is := errors.AsType[*core.Error](err)
	switch {
	case !is || errors.Is(err, signin.ErrFormToken) || errors.Is(err, errChoice):
		return 0, false
	case errors.Is(err, errNoReference):
		return http.StatusNotFound, true
	}
	switch e.Code {
	case core.CodeValidation, core.CodeDuplicateEmail, core.CodeInvalidRequest:
		return http.StatusUnprocessableEntity, true
	case core.CodeRateLimitExceeded:
		return http.StatusTooManyRequests, true
	}
	return 0, false
}

// errChoice means that the form has no such choice: no browser sends it.
var errChoice = &core.Error{Code: core.CodeInvalidRequest, Message: "There is no such choice"}

// errNoReference means that a field refers to a resource that does not exist.
var errNoReference = errors.New("the field refers to a missing resource")

// references are the errors of members that refer to a missing resource.
var references = []struct {
	missing      error
	name, detail string
}{
	{core.ErrUserNotFound, "user_id", "There is no user with this id"},
	{core.ErrPlanNotFound, "plan_id", "There is no such plan"},
}

// referenceError turns the error of a missing resource into the error of the member that refers to it.
func referenceError[R, P any](of *core.Members[R, P], err error) error {
	for _, ref := range references {
		if errors.Is(err, ref.missing) && findMember(of, ref.name) != nil {
			return errors.Join(core.Invalid(ref.name, ref.detail), errNoReference)
		}
	}
	return err
}

var metadataField = field{Name: "metadata", Label: "Metadata", Type: "textarea",
	Hint: `Your own data as a JSON object: {"customer": "A-17"}.`}

func indented(m json.RawMessage) string {
	var b bytes.Buffer
	if err := json.Indent(&b, m, "", "  "); err != nil {
		return string(m)
	}
	return b.String()
}
