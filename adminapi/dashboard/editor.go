package dashboard

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
)

// editor has the forms that create and change the resources of one kind.
type editor[K, R, P any] struct {
	noun    string // as in plan; the list is at plans, below Base
	note    string // on the page that changes one
	members *core.Members[R, P]
	omit    string            // the member without a field
	first   map[string]string // the values of the fields of a new one
	special func(q *request, value func(string) string) ([]field, error)
	of      func(*R) (id K, name string, updated time.Time)
	create  func(*core.Service, context.Context, string, P) (*R, error)
	update  func(*core.Service, context.Context, string, K, P) (*R, error)
}

// formPage shows a form with the values of its fields, and the fault of the values that were posted.
type formPage func(status int, value func(string) string, fault error) error

func (e *editor[K, R, P]) path(r *R) string {
	id, _, _ := e.of(r)
	return fmt.Sprintf("%ss/%v", e.noun, id)
}

// fields returns the fields of a form: the special fields, and one field for each other member.
func (e *editor[K, R, P]) fields(q *request, value func(string) string) ([]field, error) {
	fields, err := e.special(q, value)
	return withOthers(fields, e.members, value, e.omit), err
}

// patch reads the posted form. r is the resource that it changes, nil for a new one.
func (e *editor[K, R, P]) patch(q *request, r *R) (p P, err error) {
	err = readMembers(q.r.PostForm, e.members, r, &p, e.omit)
	return p, err
}

func (e *editor[K, R, P]) firstValue(name string) string { return e.first[name] }

func (e *editor[K, R, P]) newPage(q *request) error {
	return e.newForm(q)(http.StatusOK, e.firstValue, nil)
}

func (e *editor[K, R, P]) newForm(q *request) formPage {
	return func(status int, value func(string) string, fault error) error {
		fields, err := e.fields(q, value)
		if err != nil {
			return err
		}
		return q.showForm(status, "New "+e.noun, formView{Form: q.form(e.noun+"s", "Create "+e.noun, e.noun+"s", fields, fault)})
	}
}

func (e *editor[K, R, P]) postNew(q *request) error {
	p, err := e.patch(q, nil)
	var r *R
	if err == nil {
		r, err = e.create(q.svc, q.r.Context(), q.account(), p)
	}
	return q.finish(referenceError(e.members, err), e.newForm(q), func() error { return q.redirect(e.path(r) + "?done=created") })
}

func (e *editor[K, R, P]) editPage(q *request, r *R) error {
	return e.editForm(q, r)(http.StatusOK, func(name string) string { return memberText(e.members, r, name) }, nil)
}

func (e *editor[K, R, P]) editForm(q *request, r *R) formPage {
	return func(status int, value func(string) string, fault error) error {
		fields, err := e.fields(q, value)
		if err != nil {
			return err
		}
		_, name, updated := e.of(r)
		f := q.form(e.path(r), "Save", e.path(r), fields, fault)
		f.Hidden = []hidden{shownVersion(updated)}
		return q.showForm(status, "Edit "+name, formView{Form: f, Text: e.note})
	}
}

func (e *editor[K, R, P]) postEdit(q *request, r *R) error {
	id, _, updated := e.of(r)
	p, err := e.patch(q, r)
	if err == nil {
		err = q.checkUnchanged(updated)
	}
	if err == nil {
		_, err = e.update(q.svc, q.r.Context(), q.account(), id, p)
	}
	return q.finish(referenceError(e.members, err), e.editForm(q, r), func() error { return q.redirect(e.path(r) + "?done=saved") })
}

// errChanged means that the resource was changed after the form was rendered. Saving the form would
// undo that change.
var errChanged = &core.Error{Code: core.CodeValidation, Message: "Validation failed",
	Detail: "Someone changed it meanwhile. Look at what it is now before you save this."}

// shownVersion is the hidden field with the version of the resource that a form shows.
func shownVersion(updated time.Time) hidden {
	return hidden{"seen", fmt.Sprint(updated.UnixMilli())}
}

// checkUnchanged returns errChanged if the resource changed after the form was rendered.
func (q *request) checkUnchanged(updated time.Time) error {
	if q.r.PostForm.Get("seen") != shownVersion(updated).Value {
		return errChanged
	}
	return nil
}
