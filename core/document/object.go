package document

// Report takes the fault of a value: the line and the path of the value, such as limits[1].meter, and a text for a person.
type Report func(line int, path, text string)

// Object reads the members of an object. Each method reports a member that is wrong, and returns nothing for it and for a missing member.
// [Object.End] reports the members that no method has read.
type Object struct {
	Line int
	Path string

	members []Named
	report  Report
	faults  int // reported
}

// NewObject returns the object at a path. A value that is no object is reported as a fault, and the result is nil.
func NewObject(v *Value, path, want string, report Report) *Object {
	if v.Kind != '{' {
		if v.Kind != 0 {
			report(v.Line, path, want)
		}
		return nil
	}
	o := new(Object)
	o.Reset(v, path, report)
	return o
}

// Reset makes an object of a value of the kind '{'.
func (o *Object) Reset(v *Value, path string, report Report) {
	v.Open()
	*o = Object{Line: v.Line, Path: path, members: v.Members, report: report}
}

// fault reports a fault of the object or in it.
func (o *Object) fault(line int, path, text string) {
	o.faults++
	o.report(line, path, text)
}

// Wrong reports that a member is wrong.
func (o *Object) Wrong(name, text string) {
	line := o.Line
	if i := o.find(name); i >= 0 {
		line = o.members[i].Line
	}
	o.fault(line, Join(o.Path, name), text)
}

// Lines returns the line of each member.
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
	for i := range o.members {
		if o.members[i].Name == name {
			return i
		}
	}
	return -1
}

// Take returns a member, nil if the object has none, and marks it as read.
func (o *Object) Take(name string) *Value {
	i := o.find(name)
	if i < 0 {
		return nil
	}
	o.members[i].read = true
	return &o.members[i].Value
}

// Ignore marks members as read.
func (o *Object) Ignore(names ...string) {
	for _, name := range names {
		o.Take(name)
	}
}

// End reports each member that was not read. hint returns the end of the text of the fault, and may be nil.
func (o *Object) End(hint func(name string) string) {
	for i := range o.members {
		m := &o.members[i]
		if m.read {
			continue
		}
		text := "Unknown member"
		if hint != nil {
			text += hint(m.Name)
		}
		o.fault(m.Line, Join(o.Path, Shown(m.Name)), text)
	}
}

// value returns a member that read accepts, and whether it is there and right. null is a fault.
func value[T any](o *Object, name, want string, read func(*Value) (T, bool)) (t T, ok bool) {
	v := o.Take(name)
	if v == nil {
		return t, false
	}
	if t, ok = read(v); !ok && v.Kind != 0 {
		if v.Kind == 'n' {
			want += ", not null"
		}
		o.fault(v.Line, Join(o.Path, name), want)
	}
	return t, ok
}

// Text returns a string.
func (o *Object) Text(name string) *string { return pointer(value(o, name, WantText, text)) }

// Word returns a string, "" if there is none. It shares the memory of the whole text.
func (o *Object) Word(name string) string {
	s, _ := value(o, name, WantText, func(v *Value) (string, bool) { return v.Text, v.Kind == '"' })
	return s
}

// Whole returns a whole number.
func (o *Object) Whole(name string) *int64 { return pointer(value(o, name, WantWhole, Whole)) }

func pointer[T any](v T, ok bool) *T {
	if !ok {
		return nil
	}
	return new(v) // &v would allocate for a missing member too
}
