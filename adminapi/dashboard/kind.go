package dashboard

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/service"
)

// kind has the pages and forms that create, change and delete the resources of one kind.
type kind[K, R, P any] struct {
	noun    string // as in plan; the list is at plans, below Base
	note    string // on the page that changes one
	members *core.Members[R, P]
	omit    string                              // the member without a field
	first   map[string]string                   // the values of the fields of a new one
	special []field                             // the other members have a plain field
	place   func(*request) (newPlace[P], error) // nil: a new one is created from the list
	find    func(*request) (*R, error)          // the resource in the path
	of      func(*R) (id K, name string, updated time.Time)
	create  func(*service.Service, context.Context, string, P) (r *R, secret string, err error)
	update  func(*service.Service, context.Context, string, K, P) (*R, error)
	disable func(disabled bool) P // nil if it cannot be disabled
	toStop  core.Permission       // to disable a resource; to enable it needs [core.PermitEdit]
	remove  func(*service.Service, context.Context, string, K) error
	missing error
	signs   bool                                                          // the server keeps the secret of a new resource, because the secret signs
	losses  func(*request, *R) (points []string, refused bool, err error) // consequences of the deletion
	adjust  func(*request, K, service.AdjustmentCall) error               // nil if it has no usage
}

// newPlace is the place of the form of a new resource.
type newPlace[P any] struct {
	query string // of the form
	back  string // where the link "Cancel" leads, below Base
	text  string
	given string   // the member that the query gives, "" for none
	set   func(*P) // sets that member
}

// withoutSecret returns the create function of a kind without secrets.
func withoutSecret[R, P any](create func(*service.Service, context.Context, string, P) (*R, error)) func(*service.Service, context.Context, string, P) (*R, string, error) {
	return func(s *service.Service, ctx context.Context, account string, p P) (*R, string, error) {
		r, err := create(s, ctx, account, p)
		return r, "", err
	}
}

// addRoutes adds the pages and the posted forms.
func (k *kind[K, R, P]) addRoutes(rs routes) {
	list := k.noun + "s"
	one := list + "/{id}"
	addForm(rs, core.PermitEdit, list+"/new", list, k.newPlace, formPage[newPlace[P]]{k.newForm, k.postNew})
	addForm(rs, core.PermitEdit, one+"/edit", one, k.find, formPage[*R]{k.editForm, k.postEdit})
	addForm(rs, core.PermitEdit, one+"/delete", one+"/delete", k.find, formPage[*R]{k.deleteForm, k.postDelete})
	if k.disable != nil {
		rs["POST "+one+"/disabled"] = route{k.toStop, of(k.find)(k.postDisabled)}
	}
	if k.adjust != nil {
		addForm(rs, core.PermitSupport, one+"/adjust", one+"/adjust", k.find, formPage[*R]{k.adjustForm, k.postAdjust})
	}
}

// path returns the path of a resource below Base.
func (k *kind[K, R, P]) path(r *R) string {
	id, _, _ := k.of(r)
	return fmt.Sprintf("%ss/%v", k.noun, id)
}

// fields returns the fields of a form: the special fields, and one field for each other member.
func (k *kind[K, R, P]) fields(value func(name string) string) []field {
	fields := withOthers(k.special, k.members, k.omit)
	for i := range fields {
		fields[i].Value = value(fields[i].Name)
	}
	return fields
}

// patch reads the posted form. r is the resource that it changes, nil for a new one.
func (k *kind[K, R, P]) patch(q *request, r *R) (p P, err error) {
	err = readMembers(q.r.PostForm, k.members, r, &p, k.omit)
	return p, err
}

func (k *kind[K, R, P]) newPlace(q *request) (newPlace[P], error) {
	if k.place == nil {
		return newPlace[P]{back: k.noun + "s"}, nil
	}
	return k.place(q)
}

func (k *kind[K, R, P]) newForm(q *request, at newPlace[P]) (formView, error) {
	fields := k.fields(func(name string) string { return k.first[name] })
	fields = slices.DeleteFunc(fields, func(f field) bool { return f.Name == at.given })
	f := q.form(k.noun+"s"+at.query, "Create "+k.noun, at.back, fields...)
	return formView{Title: "New " + k.noun, Form: f, Text: at.text}, nil
}

func (k *kind[K, R, P]) postNew(q *request, at newPlace[P]) error {
	p, err := k.patch(q, nil)
	if err != nil {
		return err
	}
	if at.set != nil {
		at.set(&p)
	}
	r, secret, err := k.create(q.svc, q.r.Context(), q.account(), p)
	if err != nil {
		return referenceError(k.members, err)
	}
	if secret == "" {
		return q.redirect(k.path(r) + "?done=created")
	}
	_, name, _ := k.of(r)
	return q.showSecret(newSecret{What: k.noun, Name: name, Secret: secret, Signs: k.signs, Back: Base + k.path(r)})
}

func (k *kind[K, R, P]) editForm(q *request, r *R) (formView, error) {
	_, name, updated := k.of(r)
	fields := k.fields(func(name string) string { return memberText(k.members, r, name) })
	f := q.form(k.path(r), "Save", k.path(r), fields...)
	f.Hidden = []hidden{{"seen", version(updated)}}
	return formView{Title: "Edit " + name, Form: f, Text: k.note}, nil
}

func (k *kind[K, R, P]) postEdit(q *request, r *R) error {
	id, _, updated := k.of(r)
	p, err := k.patch(q, r)
	if err == nil && q.r.PostForm.Get("seen") != version(updated) {
		err = errChanged
	}
	if err == nil {
		_, err = k.update(q.svc, q.r.Context(), q.account(), id, p)
	}
	if err != nil {
		return referenceError(k.members, err)
	}
	return q.redirect(k.path(r) + "?done=saved")
}

// errChanged means that the resource was changed after the form was rendered. Saving the form would
// undo that change.
var errChanged = core.Invalid("", "Someone changed it meanwhile. Look at what it is now before you save this.")

// version names the version of a resource that a form shows.
func version(updated time.Time) string { return strconv.FormatInt(updated.UnixMilli(), 10) }

// disableForm returns a form with one button that disables or enables a resource. It is the zero form if the role lacks the permission.
func (k *kind[K, R, P]) disableForm(q *request, r *R, disabled bool) form {
	if !q.may(k.permitDisabled(!disabled)) {
		return form{}
	}
	f := q.form(k.path(r)+"/disabled", "Disable", "")
	if disabled {
		f.Submit = "Enable"
	}
	f.Hidden = []hidden{{"disabled", strconv.FormatBool(!disabled)}}
	return f
}

// permitDisabled returns the permission to disable a resource, or to enable it.
func (k *kind[K, R, P]) permitDisabled(disabled bool) core.Permission {
	if disabled {
		return k.toStop
	}
	return core.PermitEdit
}

func (k *kind[K, R, P]) postDisabled(q *request, r *R) error {
	done, ok := map[string]string{"true": "disabled", "false": "enabled"}[q.r.PostForm.Get("disabled")]
	if !ok {
		return errChoice
	}
	if err := q.signedIn.Person.Role.Require(k.permitDisabled(done == "disabled")); err != nil {
		return err
	}
	id, _, _ := k.of(r)
	if _, err := k.update(q.svc, q.r.Context(), q.account(), id, k.disable(done == "disabled")); err != nil {
		return err
	}
	return q.redirect(k.path(r) + "?done=" + done)
}

func (k *kind[K, R, P]) deleteForm(q *request, r *R) (formView, error) {
	points, refused, err := k.losses(q, r)
	if err != nil {
		return formView{}, err
	}
	f := q.form(k.path(r)+"/delete", "Delete "+k.noun, k.path(r))
	f.Danger = true
	if refused {
		f.Submit = ""
	}
	_, name, _ := k.of(r)
	return formView{Title: "Delete “" + name + "”?", Form: f, Points: points}, nil
}

// postDelete deletes a resource. It succeeds also if another request has deleted the resource.
func (k *kind[K, R, P]) postDelete(q *request, r *R) error {
	id, _, _ := k.of(r)
	err := k.remove(q.svc, q.r.Context(), q.account(), id)
	if err != nil && !errors.Is(err, k.missing) {
		return err
	}
	return q.redirect(k.noun + "s?done=deleted")
}
