package core

import (
	"encoding/json"
	"reflect"
	"slices"
)

// MemberType says how the values of a member are written in JSON, and which Go type they have.
type MemberType string

// The types of members.
const (
	TypeText   MemberType = "text"   // string
	TypeTexts  MemberType = "texts"  // []string
	TypeFlag   MemberType = "flag"   // bool
	TypeWhole  MemberType = "whole"  // int64
	TypeTime   MemberType = "time"   // time.Time in UTC, in whole milliseconds
	TypeStart  MemberType = "start"  // time.Time in UTC; in JSON also a date
	TypeObject MemberType = "object" // json.RawMessage
	TypeLimits MemberType = "limits" // []Limit
	TypeRate   MemberType = "rate"   // Rate

	TypeOverrides MemberType = "overrides" // []Override
)

// Member is the description of a member of a resource R that callers set with a patch P. The REST API, files, the dashboard and archives read,
// check, show and compare members by it.
type Member[R, P any] struct {
	Name     string // in JSON
	Type     MemberType
	Nullable bool // null clears the member
	Required bool // of a new resource

	Words []string // the only values of a text; nil for other texts

	set   func(p *P, v any)  // v has the type of the member; nil clears it
	given func(p *P) bool    // the patch sets the member
	get   func(r *R) any     // as for set
	apply func(*P, *R) error // checks and sets the member; nil for a member that depends on other resources
}

// Set puts a value of the type of the member into a patch. nil clears a nullable member.
func (m *Member[R, P]) Set(p *P, v any) { m.set(p, v) }

// Get returns the value of the member, nil for none.
func (m *Member[R, P]) Get(r *R) any { return m.get(r) }

// Independent reports whether the rules of the member depend on no other resource. [Members.Apply] sets only such members.
func (m *Member[R, P]) Independent() bool { return m.apply != nil }

// plain describes a member that is never null. in returns its field in a patch, get its value, and set checks and sets it.
func plain[R, P, T any](name string, typ MemberType, in func(*P) **T, get func(*R) T, set func(*R, T) error) Member[R, P] {
	m := Member[R, P]{Name: name, Type: typ,
		set:   func(p *P, v any) { *in(p) = new(v.(T)) },
		given: func(p *P) bool { return *in(p) != nil },
		get:   func(r *R) any { return get(r) },
	}
	if set != nil {
		m.apply = func(p *P, r *R) error { return set(r, **in(p)) }
	}
	return m
}

// word describes a text member that has one of some words. Other texts are refused with the detail.
func word[R, P any](name string, words []string, detail string, in func(*P) **string, get func(*R) string, set func(*R, string)) Member[R, P] {
	m := plain(name, TypeText, in, get, func(r *R, v string) error {
		if set(r, v); !slices.Contains(words, v) {
			return Invalid(name, detail)
		}
		return nil
	})
	m.Words = words
	return m
}

// required returns the member as a required one.
func (m Member[R, P]) required() Member[R, P] {
	m.Required = true
	return m
}

// nullable describes a member that null clears. get returns nil for none, and set gets nil to clear the member.
func nullable[R, P, T any](name string, typ MemberType, in func(*P) *Optional[T], get func(*R) *T, set func(*R, *T) error) Member[R, P] {
	m := Member[R, P]{Name: name, Type: typ, Nullable: true,
		set: func(p *P, v any) {
			*in(p) = Null[T]()
			if v != nil {
				*in(p) = Some(v.(T))
			}
		},
		given: func(p *P) bool { return in(p).Set },
		get: func(r *R) any {
			if v := get(r); v != nil {
				return *v
			}
			return nil
		},
	}
	if set != nil {
		m.apply = func(p *P, r *R) error { return set(r, in(p).Value) }
	}
	return m
}

// unchecked returns the set of a member without a rule of its own.
func unchecked[R, T any](set func(*R, T)) func(*R, T) error {
	return func(r *R, v T) error {
		set(r, v)
		return nil
	}
}

// nameMember describes the member name. of returns where a resource has it.
func nameMember[R, P any](in func(*P) **string, of func(*R) *string) Member[R, P] {
	return plain("name", TypeText, in, func(r *R) string { return *of(r) }, func(r *R, v string) (err error) {
		*of(r), err = CleanName("name", v)
		return err
	}).required()
}

// metadataMember describes the member metadata. of returns where a resource has it.
func metadataMember[R, P any](in func(*P) *Optional[json.RawMessage], of func(*R) *json.RawMessage) Member[R, P] {
	get := func(r *R) *json.RawMessage {
		if *of(r) == nil {
			return nil
		}
		return of(r)
	}
	return nullable("metadata", TypeObject, in, get, func(r *R, v *json.RawMessage) (err error) {
		*of(r), err = cleanMetadata(v)
		return err
	})
}

// Members describe a kind of resource.
type Members[R, P any] struct {
	List []Member[R, P] // in the order of JSON

	fresh func() *R      // a resource in the state in which rules of single members can be checked
	rule  func(*R) error // the rules of several members; nil for none
}

// Apply checks and sets the members of a patch that do not depend on other resources.
func (ms *Members[R, P]) Apply(p *P, r *R) error {
	for i := range ms.List {
		if m := &ms.List[i]; m.apply != nil && m.given(p) {
			if err := m.apply(p, r); err != nil {
				return err
			}
		}
	}
	if ms.rule == nil {
		return nil
	}
	return ms.rule(r)
}

// Changes reports whether a patch gives a member of a resource another value. It may report a change where only the form differs, such as
// a name with insignificant space.
func (ms *Members[R, P]) Changes(p P, r *R) bool {
	for i := range ms.List {
		m, same := &ms.List[i], p
		if !m.given(&p) {
			continue
		}
		if m.set(&same, m.get(r)); !reflect.DeepEqual(same, p) {
			return true
		}
	}
	return false
}

// Errors returns each rule that a patch breaks on any resource, in the order of the members.
func (ms *Members[R, P]) Errors(p P) (errs []error) {
	whole := ms.fresh()
	for i := range ms.List {
		m := &ms.List[i]
		if m.apply == nil || !m.given(&p) {
			continue
		}
		alone := Members[R, P]{List: ms.List[i : i+1], rule: ms.rule}
		if err := alone.Apply(&p, ms.fresh()); err != nil {
			errs = append(errs, err)
			continue
		}
		_ = m.apply(&p, whole) // it was valid alone
	}
	if ms.rule != nil {
		if err := ms.rule(whole); err != nil {
			errs = append(errs, err)
		}
	}
	return errs
}

// Missing returns an error for each member that a new resource requires and the patch lacks.
func (ms *Members[R, P]) Missing(p P) (errs []error) {
	for i := range ms.List {
		if m := &ms.List[i]; m.Required && !m.given(&p) {
			errs = append(errs, Invalid(m.Name, fieldLabel(m.Name)+" is required"))
		}
	}
	return errs
}

// Required returns the first error of Missing, nil for none.
func (ms *Members[R, P]) Required(p P) error {
	if errs := ms.Missing(p); len(errs) > 0 {
		return errs[0]
	}
	return nil
}

// check returns an error unless the members of a stored resource are what a patch with their values would store.
func (ms *Members[R, P]) check(r *R) error {
	again := *r
	for i := range ms.List {
		m := &ms.List[i]
		if m.apply == nil {
			continue
		}
		var p P
		m.set(&p, m.get(r))
		if err := m.apply(&p, &again); err != nil {
			return err
		}
		if !reflect.DeepEqual(m.get(&again), m.get(r)) {
			return Invalid(m.Name, fieldLabel(m.Name)+" must have no insignificant space")
		}
	}
	if ms.rule == nil {
		return nil
	}
	return ms.rule(&again)
}
