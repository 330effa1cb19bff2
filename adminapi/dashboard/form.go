package dashboard

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
)

// form is a form on a page.
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

// hidden is a hidden field of a form.
type hidden struct{ Name, Value string }

// field is one field of a form.
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

// formView is a page with a single form.
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

// form returns a form that posts to a path below Base. An error of one field is shown at that field.
func (q *request) form(action, submit string, fields []field, fault error) form {
	f := form{Action: Base + action, Token: q.token(), Submit: submit, Fields: fields}
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

// showEdit answers with the form that edits the resource at a path below Base, version updated.
func (q *request) showEdit(status int, path, name, text string, fields []field, updated time.Time, fault error) error {
	f := q.form(path, "Save", fields, fault)
	f.Hidden, f.Cancel = []hidden{shownVersion(updated)}, Base+path
	return q.showForm(status, "Edit "+name, formView{Form: f, Text: text})
}

// deleteForm returns the form that confirms the deletion of the resource at a path below Base.
func (q *request) deleteForm(path, submit string, fault error) form {
	f := q.form(path+"/delete", submit, nil, fault)
	f.Danger, f.Cancel = true, Base+path
	return f
}

// finish answers to a posted form. For an error that the user can correct it shows the form again with
// the posted values, else it returns err. After a success it redirects to the page below Base that next
// returns.
func (q *request) finish(err error, show func(status int, value func(string) string, fault error) error, next func() string) error {
	if status, ok := formStatus(err); ok {
		return show(status, q.r.PostForm.Get, err)
	}
	if err != nil {
		return err
	}
	return q.redirect(next())
}

// finishEdit is finish for the form that edits v, the resource at a path below Base.
func finishEdit[T any](q *request, err error, show func(*request, int, T, func(string) string, error) error, v T, path string) error {
	return q.finish(err, func(status int, value func(string) string, fault error) error {
		return show(q, status, v, value, fault)
	}, func() string { return path + "?done=saved" })
}

// finishDelete answers to a deletion: it redirects to the list, also if another request has deleted the
// resource.
func (q *request) finishDelete(err, missing error, list string) error {
	if err != nil && !errors.Is(err, missing) {
		return err
	}
	return q.redirect(list + "?done=deleted")
}

// errChanged means that the resource was changed after the form was rendered. Saving the form would
// undo that change.
var errChanged = &core.Error{Code: core.CodeValidation, Message: "Validation failed",
	Detail: "Someone changed it meanwhile. Look at what it is now before you save this."}

// shownVersion is the hidden field with the version of the resource that a form shows.
func shownVersion(updated time.Time) hidden {
	return hidden{"seen", strconv.FormatInt(updated.UnixMilli(), 10)}
}

// checkUnchanged returns errChanged if the resource changed after the form was rendered.
func (q *request) checkUnchanged(updated time.Time) error {
	if q.r.PostForm.Get("seen") != shownVersion(updated).Value {
		return errChanged
	}
	return nil
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

// noReference returns the error for a field that refers to a missing resource.
func noReference(field, detail string) error {
	return errors.Join(fieldError(field, detail), errNoReference)
}

// planFieldError turns a missing plan into an error of the plan field.
func planFieldError(err error) error {
	if errors.Is(err, core.ErrPlanNotFound) {
		return noReference("plan_id", "There is no such plan")
	}
	return err
}

// without returns the fields except one.
func without(fields []field, name string) []field {
	return slices.DeleteFunc(fields, func(f field) bool { return f.Name == name })
}

// metadataField returns the metadata field of a user or key.
func metadataField(value func(string) string) field {
	return field{Name: "metadata", Label: "Metadata", Type: "textarea", Value: value("metadata"),
		Hint: `Your own data as a JSON object: {"customer": "A-17"}.`}
}

// indented returns indented JSON.
func indented(m json.RawMessage) string {
	var b bytes.Buffer
	if err := json.Indent(&b, m, "", "  "); err != nil {
		return string(m)
	}
	return b.String()
}

// disableForm returns a form with one button that disables or enables the resource at path.
func (q *request) disableForm(path string, disabled bool) form {
	f := q.form(path+"/disabled", "Disable", nil, nil)
	if disabled {
		f.Submit = "Enable"
	}
	f.Hidden = []hidden{{"disabled", strconv.FormatBool(!disabled)}}
	return f
}

// postedDisabled parses a disableForm. done is a key of doneTexts.
func (q *request) postedDisabled() (disabled bool, done string, err error) {
	switch q.r.PostForm.Get("disabled") {
	case "true":
		return true, "disabled", nil
	case "false":
		return false, "enabled", nil
	}
	return false, "", errChoice
}
