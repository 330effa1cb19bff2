package dashboard

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
)

// form is a form on a page.
type form struct {
	Action string // where it is sent
	Token  string // that lets it be sent once
	Submit string // what the button says, "" for none: there is nothing to do
	Danger bool   // the button destroys something
	Cancel string // the page to go back to, "" for none
	Hidden []hidden
	Fields []field
	Fault  string // what is wrong with the form as a whole
}

// hidden is a field that nobody sees.
type hidden struct{ Name, Value string }

// field is one field of a form.
type field struct {
	Name, Label  string
	Type         string // of the input: text by default; select, textarea and radio stand for those elements
	Value        string
	Hint         string
	Fault        string
	Options      []option // of a select and of radio buttons
	Required     bool
	Autofocus    bool
	Autocomplete string
	Min, Max     string // of a number
	MinLength    int
	Placeholder  string
}

// option is a choice.
type option struct{ Value, Label, Hint string }

// formView is a page that is nothing but a form.
type formView struct {
	Title  string
	Text   string
	Points []string // what follows
	Form   form
}

// showForm answers with a page that is nothing but a form.
func (q *request) showForm(status int, title string, v formView) error {
	v.Title = title
	return q.render(status, "form", title, v)
}

// token returns a token for the forms of a page. One of them can be sent.
func (q *request) token() string { return q.svc.NewFormToken(q.who) }

// form returns a form that is sent to a path below Base. A fault with one of its fields
// is shown there.
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

// errChanged means that what a form is about is not any more as it was when the form was
// shown: saving it would undo what someone else did.
var errChanged = &core.Error{Code: core.CodeValidation, Message: "Validation failed",
	Detail: "Someone changed it meanwhile. Look at what it is now before you save this."}

// shownVersion is the field that says which state of a thing a form shows.
func shownVersion(updated time.Time) hidden {
	return hidden{"seen", strconv.FormatInt(updated.UnixMilli(), 10)}
}

// checkUnchanged returns errChanged unless a form shows the state of a thing that it still has.
func (q *request) checkUnchanged(updated time.Time) error {
	if q.r.PostForm.Get("seen") != shownVersion(updated).Value {
		return errChanged
	}
	return nil
}

// errorText returns what a form says of an error, "" without one.
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

// formStatus returns the status of an error that is shown in the form that it is of: what
// was filled in can be mended and sent again.
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

// fieldError is a fault of what one field of a form says.
func fieldError(field, detail string) error {
	return &core.Error{Code: core.CodeValidation, Message: "Validation failed", Field: field, Detail: detail}
}

// errNoReference means that what a field refers to is not there.
var errNoReference = errors.New("the field refers to nothing")

// noReference is the fault of a field that refers to nothing.
func noReference(field, detail string) error {
	return errors.Join(fieldError(field, detail), errNoReference)
}

// planFieldError makes a plan that a form names, and that there is not, a fault of its field.
func planFieldError(err error) error {
	if errors.Is(err, core.ErrPlanNotFound) {
		return noReference("plan_id", "There is no such plan")
	}
	return err
}

// without returns the fields but for one.
func without(fields []field, name string) []field {
	return slices.DeleteFunc(fields, func(f field) bool { return f.Name == name })
}

// metadataField is the field of the metadata of a user or key.
func metadataField(value func(string) string) field {
	return field{Name: "metadata", Label: "Metadata", Type: "textarea", Value: value("metadata"),
		Hint: `Whatever you want to keep with it, as a JSON object: {"customer": "A-17"}.`}
}

// optionalObject returns a JSON object that was filled in, and none when there is nothing.
func optionalObject(s string) core.Optional[json.RawMessage] {
	if s = strings.TrimSpace(s); s == "" {
		return core.Null[json.RawMessage]()
	}
	return core.Some(json.RawMessage(s))
}

// indented writes metadata for people.
func indented(m json.RawMessage) string {
	var b bytes.Buffer
	if err := json.Indent(&b, m, "", "  "); err != nil {
		return string(m)
	}
	return b.String()
}

// disableForm returns the form of the button that disables what is at a path, or enables it
// again.
func (q *request) disableForm(path string, disabled bool) form {
	f := q.form(path+"/disabled", "Disable", nil, nil)
	if disabled {
		f.Submit = "Enable"
	}
	f.Hidden = []hidden{{"disabled", strconv.FormatBool(!disabled)}}
	return f
}

// postedDisabled reads the form of such a button, and returns what is done then: see [done].
func (q *request) postedDisabled() (disabled bool, done string, err error) {
	switch q.r.PostForm.Get("disabled") {
	case "true":
		return true, "disabled", nil
	case "false":
		return false, "enabled", nil
	}
	return false, "", errChoice
}
