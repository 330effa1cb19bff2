package dashboard

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"

	"github.com/limitkeeper/limitkeeper/core"
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

// showForm answers with a page with a single form.
func (q *request) showForm(status int, title string, v formView) error {
	v.Title = title
	return q.render(status, "form", title, v)
}

// token returns a token for the forms of a page. The server accepts only one of them.
func (q *request) token() string { return q.svc.NewFormToken(q.signedIn) }

// form returns a form that posts to a path below Base. cancel is the path of the link "Cancel", "" for no link. An error of one field is
// shown at that field.
func (q *request) form(action, submit, cancel string, fields []field, fault error) form {
	f := form{Action: Base + action, Token: q.token(), Submit: submit, Fields: fields}
	if cancel != "" {
		f.Cancel = Base + cancel
	}
	if e, ok := errors.AsType[*core.Error](fault); ok {
		for i := range f.Fields {
			if f.Fields[i].Name == e.Field {
				f.Fields[i].Fault = e.Detail
				return f
			}
		}
	}
	f.Fault = errorText(fault)
	return f
}

// deleteForm returns the form that confirms the deletion of the resource at a path below Base.
func (q *request) deleteForm(path, submit string, fault error) form {
	f := q.form(path+"/delete", submit, path, nil, fault)
	f.Danger = true
	return f
}

// finish answers to a posted form. For an error that the user can correct it shows the form again with
// the posted values, else it returns err. After a success it calls next.
func (q *request) finish(err error, show formPage, next func() error) error {
	if status, ok := formStatus(err); ok {
		return show(status, q.r.PostForm.Get, err)
	}
	if err != nil {
		return err
	}
	return next()
}

// finishDelete answers to a deletion: it redirects to the list, also if another request has deleted the
// resource.
func (q *request) finishDelete(err, missing error, list string) error {
	if err != nil && !errors.Is(err, missing) {
		return err
	}
	return q.redirect(list + "?done=deleted")
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
	case !is || errors.Is(err, core.ErrFormToken):
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

// fieldError returns the error for an invalid value of a field.
func fieldError(field, detail string) error {
	return &core.Error{Code: core.CodeValidation, Message: "Validation failed", Field: field, Detail: detail}
}

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
			return errors.Join(fieldError(ref.name, ref.detail), errNoReference)
		}
	}
	return err
}

func metadataField(value func(string) string) field {
	return field{Name: "metadata", Label: "Metadata", Type: "textarea", Value: value("metadata"),
		Hint: `Your own data as a JSON object: {"customer": "A-17"}.`}
}

func indented(m json.RawMessage) string {
	var b bytes.Buffer
	if err := json.Indent(&b, m, "", "  "); err != nil {
		return string(m)
	}
	return b.String()
}

// disableForm returns a form with one button that disables or enables the resource at path.
func (q *request) disableForm(path string, disabled bool) form {
	f := q.form(path+"/disabled", "Disable", "", nil, nil)
	if disabled {
		f.Submit = "Enable"
	}
	f.Hidden = []hidden{{"disabled", strconv.FormatBool(!disabled)}}
	return f
}

// disable answers to the disableForm of the resource at path.
func (q *request) disable(path string, change func(disabled bool) error) error {
	done, ok := map[string]string{"true": "disabled", "false": "enabled"}[q.r.PostForm.Get("disabled")]
	if !ok {
		return errChoice
	}
	if err := change(done == "disabled"); err != nil {
		return err
	}
	return q.redirect(path + "?done=" + done)
}
