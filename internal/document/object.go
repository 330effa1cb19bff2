package document

import "slices"

// Report is called with each value at fault: its line, its path, such as limits[1].meter, and what is wrong.
type Report func(line int, path, text string)

// Object reads the members of an object. Each method reports a member that is wrong, and returns nothing for it and for a missing member.
// [Object.End] reports the members that no method has read.
type Object struct {
	Line int
	Path string

	members []Named
	read    []bool   // by the index in members
	known   []string // the names that were asked for
	report  Report
	faults  int // reported
}

// NewObject returns an object with a path, nil after it has reported that the value is none.
func NewObject(v *Value, path string, report Report) *Object {
	return objectLike(v, path, "Must be an object", report)
}

// objectLike is NewObject with the text of the fault.
func objectLike(v *Value, path, want string, report Report) *Object {
	if v.Kind != '{' {
		report(v.Line, path, want)
		return nil
	}
	return &Object{Line: v.Line, Path: path, members: v.Members, read: make([]bool, len(v.Members)), report: report}
}

// fault reports a fault of the object or in it.
func (o *Object) fault(line int, path, text string) {
	o.faults++
	o.report(line, path, text)
}

// Wrong reports that a member is wrong.
func (o *Object) Wrong(name, text string) { o.fault(o.LineOf(name), Join(o.Path, name), text) }

// LineOf returns the line of a member, or of the object if it has none.
func (o *Object) LineOf(name string) int {
	if i := o.find(name); i >= 0 {
		return o.members[i].Line
	}
	return o.Line
}

// Lines returns the lines of the members.
func (o *Object) Lines() map[string]int {
	lines := make(map[string]int, len(o.members))
	for i := range o.members {
		lines[o.members[i].Name] = o.members[i].Line
	}
	return lines
}

// Has reports whether the object has a member, right or wrong.
func (o *Object) Has(name string) bool { return o.find(name) >= 0 }

func (o *Object) find(name string) int {
	return slices.IndexFunc(o.members, func(m Named) bool { return m.Name == name })
}

// Take returns a member, nil if the object has none, and marks it as read.
func (o *Object) Take(name string) *Value {
	o.known = append(o.known, name)
	i := o.find(name)
	if i < 0 {
		return nil
	}
	o.read[i] = true
	return &o.members[i].Value
}

// Ignore marks members as read.
func (o *Object) Ignore(names ...string) {
	for _, name := range names {
		o.Take(name)
	}
}

// End reports each member that was not read. hint returns the end of the text of the fault; it gets the names that were asked for, and may
// be nil.
func (o *Object) End(hint func(name string, known []string) string) {
	for i := range o.members {
		if o.read[i] {
			continue
		}
		text := "Unknown member"
		if hint != nil {
			text += hint(o.members[i].Name, o.known)
		}
		o.fault(o.members[i].Line, Join(o.Path, Shown(o.members[i].Name)), text)
	}
}

// value returns a member that read accepts. null is a fault.
func value[T any](o *Object, name, want string, read func(*Value) (T, bool)) *T {
	v := o.Take(name)
	if v == nil {
		return nil
	}
	t, ok := read(v)
	if !ok {
		if v.Kind == 'n' {
			want += ", not null"
		}
		o.fault(v.Line, Join(o.Path, name), want)
		return nil
	}
	return &t
}

// Text returns a string.
func (o *Object) Text(name string) *string { return value(o, name, wantText, text) }

// Whole returns a whole number.
func (o *Object) Whole(name string) *int64 { return value(o, name, wantWhole, Whole) }
