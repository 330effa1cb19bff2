// Package document reads JSON and YAML by one set of rules: the bodies of the REST API, and files of accounts. It turns both into values
// with their lines, and values into the members of patches, as core describes them.
package document

import (
	"bytes"
	"cmp"
	"errors"
	"io"
	"math"
	"slices"
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/limitkeeper/limitkeeper/core/secrets"
)

// Value is a value of JSON, or the same in YAML.
type Value struct {
	Kind    jsontext.Kind // 'n', 't', 'f', '"', '0', '{' or '['; 0 for a value whose fault was reported
	Line    int           // from 1
	Text    string        // of a string or number; that of a number of YAML may be none of JSON. Of an object or array: its JSON text, "" in YAML
	Members []Named       // of an object, after Open
	Items   []Value       // of an array, after Open
}

// Named is a member of an object.
type Named struct {
	Name string
	Line int // of the name
	Value

	read bool
}

// SyntaxError says why a text is no value.
type SyntaxError struct {
	Line int              // from 1
	At   jsontext.Pointer // of the value at fault, "" for the whole text
	Text string
}

// Error implements error.
func (e *SyntaxError) Error() string { return e.Text }

// ParseJSON sets the value to that of a JSON text (RFC 8259), and reuses the memory of its members. It refuses what parsers read differently:
// a member that is there twice, and half a surrogate pair. Objects and arrays nest up to a depth. The error is a [*SyntaxError]. The texts of the
// value share the memory of one copy of the JSON text.
func (v *Value) ParseJSON(text []byte, depth int) error {
	room := v.Members[:cap(v.Members)]
	clear(room)
	*v = Value{Members: room[:0]}
	if !utf8.Valid(text) {
		return &SyntaxError{1, "", "Must be valid UTF-8"}
	}
	p := newParser(string(text), bytes.NewBuffer(text), 1, depth)
	defer parsers.Put(p)
	v.Kind = p.dec.PeekKind()
	err := p.root(v)
	if err == nil {
		if p.dec.InputOffset() == int64(len(text)) {
			return nil
		}
		if _, err = p.dec.ReadToken(); err == io.EOF {
			return nil // behind space
		}
		err = cmp.Or(err, errors.New("a second value"))
	}
	return p.fault(err)
}

// Open parses the members or items. What is in them is parsed when they are opened: a body of 64 KiB can have 30,000 values, and most of them
// are read as one JSON text or not at all.
func (v *Value) Open() {
	if v.Kind != '{' && v.Kind != '[' || v.Text == "" || len(v.Members) > 0 || v.Items != nil {
		return
	}
	p := newParser(v.Text, bytes.NewBufferString(v.Text), v.Line, math.MaxInt)
	defer parsers.Put(p)
	_ = p.level(v) // it is valid
}

type parser struct {
	dec   jsontext.Decoder
	in    bytes.Buffer
	all   string
	lines bool // all has several
	line  int  // at the offset seen
	seen  int
	depth int // the largest
}

var parsers = sync.Pool{New: func() any { return new(parser) }}

// newParser returns a parser from the pool.
func newParser(all string, in *bytes.Buffer, line, depth int) *parser {
	p := parsers.Get().(*parser)
	p.all, p.lines, p.line, p.seen, p.depth = all, strings.IndexByte(all, '\n') >= 0, line, 0, depth
	p.in = *in
	p.dec.Reset(&p.in)
	return p
}

var errDepth = errors.New("too deep")

// lineAt returns the line of an offset, which is behind the offsets of earlier calls.
func (p *parser) lineAt(offset int) int {
	if p.lines {
		p.line += strings.Count(p.all[p.seen:offset], "\n")
		p.seen = offset
	}
	return p.line
}

// root reads the value of the whole text.
func (p *parser) root(v *Value) error {
	if v.Kind != '{' {
		return p.value(v)
	}
	v.Text = strings.TrimSpace(p.all)
	return p.level(v)
}

// level reads an object or array, and the objects and arrays in it as JSON texts.
func (p *parser) level(v *Value) error {
	if _, err := p.dec.ReadToken(); err != nil {
		return err
	}
	v.Line = p.lineAt(int(p.dec.InputOffset()))
	for {
		if next := p.dec.PeekKind(); next == '}' || next == ']' {
			_, err := p.dec.ReadToken()
			return err
		}
		if v.Kind == '[' {
			v.Items = append(v.Items, Value{})
			if err := p.value(&v.Items[len(v.Items)-1]); err != nil {
				return err
			}
			continue
		}
		n := len(v.Members)
		if n == cap(v.Members) {
			v.Members = slices.Grow(v.Members, 4)
		}
		v.Members = v.Members[:n+1] // the memory behind the members is zero
		m := &v.Members[n]
		if err := p.value(&m.Value); err != nil {
			return err
		}
		m.Name, m.Line = m.Text, m.Value.Line
		if err := p.value(&m.Value); err != nil {
			return err
		}
	}
}

// value reads a value: the content of a string, and the JSON text of an object or array.
func (p *parser) value(v *Value) error {
	raw, err := p.dec.ReadValue()
	if err != nil {
		return err
	}
	to := int(p.dec.InputOffset())
	from := to - len(raw)
	v.Kind, v.Line, v.Text = raw.Kind(), p.lineAt(from), p.all[from:to]
	switch {
	case v.Kind == '"' && bytes.IndexByte(raw, '\\') >= 0:
		content, err := jsontext.AppendUnquote(nil, raw)
		v.Text = string(content)
		return err
	case v.Kind == '"':
		v.Text = v.Text[1 : len(v.Text)-1]
	case nestsOver(raw, p.depth-p.dec.StackDepth()):
		return errDepth
	}
	return nil
}

// nestsOver reports whether the objects and arrays of a value nest deeper than a depth.
func nestsOver(raw jsontext.Value, depth int) bool {
	if bytes.Count(raw, []byte("["))+bytes.Count(raw, []byte("{")) <= depth {
		return false // fast path: nearly all values
	}
	for dec := jsontext.NewDecoder(bytes.NewBuffer(raw)); dec.StackDepth() <= depth; {
		if _, err := dec.ReadToken(); err != nil {
			return false
		}
	}
	return true
}

// fault returns the error for an error of the decoder.
func (p *parser) fault(err error) *SyntaxError {
	s, _ := errors.AsType[*jsontext.SyntacticError](err)
	at := int(p.dec.InputOffset())
	if s != nil {
		at = int(s.ByteOffset)
	}
	e := &SyntaxError{Line: 1 + strings.Count(p.all[:min(at, len(p.all))], "\n"), Text: "Must be valid JSON"}
	switch {
	case errors.Is(err, errDepth):
		e.At, e.Text = p.dec.StackPointer(), "Must not be nested that deeply"
	case s == nil:
	case errors.Is(err, jsontext.ErrDuplicateName):
		e.At, e.Text = s.JSONPointer, "Must not be given twice"
	case strings.Contains(s.Error(), "surrogate"):
		e.Text = "Must not escape half a surrogate pair"
	}
	return e
}

// Join returns the path of a member of an object.
func Join(path, member string) string {
	if path == "" || member == "" {
		return path + member
	}
	return path + "." + member
}

// JSON returns the value as a JSON text, with the members in their order. ok is false for a value that JSON does not have.
func (v *Value) JSON() (text jsontext.Value, ok bool) {
	if (v.Kind == '{' || v.Kind == '[') && v.Text != "" {
		return jsontext.Value(v.Text), true
	}
	var b bytes.Buffer
	enc := jsontext.NewEncoder(&b, jsontext.PreserveRawStrings(true))
	if v.encode(enc) != nil {
		return nil, false
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), true
}

func (v *Value) encode(enc *jsontext.Encoder) error {
	switch v.Kind {
	case 'n':
		return enc.WriteToken(jsontext.Null)
	case 't', 'f':
		return enc.WriteToken(jsontext.Bool(v.Kind == 't'))
	case '"':
		return enc.WriteToken(jsontext.String(v.Text))
	case '0':
		return enc.WriteValue(jsontext.Value(v.Text))
	case '[':
		err := enc.WriteToken(jsontext.BeginArray)
		for i := range v.Items {
			err = errors.Join(err, v.Items[i].encode(enc))
		}
		return errors.Join(err, enc.WriteToken(jsontext.EndArray))
	case '{':
		err := enc.WriteToken(jsontext.BeginObject)
		for i := range v.Members {
			err = errors.Join(err, enc.WriteToken(jsontext.String(v.Members[i].Name)), v.Members[i].encode(enc))
		}
		return errors.Join(err, enc.WriteToken(jsontext.EndObject))
	}
	return errors.New("no value of JSON")
}

// Shown returns the name of an unknown member for an error: at most 64 bytes of printable characters, without secrets. Control characters
// could change a terminal or begin a line.
func Shown(name string) string {
	const most = 64
	name = strings.ToValidUTF8(name[:min(len(name), most)], "")
	return secrets.MaskSecrets(strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return unicode.ReplacementChar
		}
		return r
	}, name))
}
