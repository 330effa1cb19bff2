// Package document reads JSON and YAML by one set of rules: the bodies of the REST API, and files of accounts. It turns both into values
// with their lines, and values into the members of patches, as core describes them.
package document

import (
	"bytes"
	"cmp"
	"errors"
	"io"
	"math"
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/limitkeeper/limitkeeper/core"
)

// Value is a value of JSON, or the same in YAML.
type Value struct {
	Kind    jsontext.Kind // 'n', 't', 'f', '"', '0', '{' or '['; 0 for a value whose fault was reported
	Line    int           // from 1
	Text    string        // of a string or number; that of a number of YAML may be none of JSON
	Members []Named       // of an object, after Open
	Items   []Value       // of an array, after Open

	raw string // of an object or array of JSON; "" in YAML
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

// ParseJSON parses a JSON text (RFC 8259) of one value. It refuses what parsers read differently: a member that is there twice, and half a
// surrogate pair. Objects and arrays nest up to a depth. The error is a [*SyntaxError]. The texts of the value share the memory of one copy of
// the JSON text.
func ParseJSON(text []byte, depth int) (v Value, err error) {
	if !utf8.Valid(text) {
		return v, &SyntaxError{1, "", "Must be valid UTF-8"}
	}
	p := parsers.Get().(*parser)
	defer parsers.Put(p)
	p.all, p.line, p.seen, p.depth = string(text), 1, 0, depth
	p.in = *bytes.NewBuffer(text)
	p.dec.Reset(&p.in)
	if v, err = p.root(); err == nil {
		if _, err = p.dec.ReadToken(); err == io.EOF {
			return v, nil
		}
		err = cmp.Or(err, errors.New("a second value"))
	}
	return v, p.fault(err)
}

// Open parses the members or items. What is in them is parsed when they are opened: a body of 64 KiB can have 30,000 values, and most of them
// are read as one JSON text or not at all.
func (v *Value) Open() {
	if v.raw == "" || v.Members != nil || v.Items != nil {
		return
	}
	p := parsers.Get().(*parser)
	defer parsers.Put(p)
	p.all, p.line, p.seen, p.depth = v.raw, v.Line, 0, math.MaxInt
	p.in = *bytes.NewBufferString(v.raw)
	p.dec.Reset(&p.in)
	_ = p.level(v) // it is valid
}

type parser struct {
	dec  jsontext.Decoder
	in   bytes.Buffer
	all  string
	line int // at the offset seen
	seen int

	depth int // the largest
}

var parsers = sync.Pool{New: func() any { return new(parser) }}

var errDepth = errors.New("too deep")

// here returns the line at the end of the last token or value that dec has read.
func (p *parser) here() int {
	at := int(p.dec.InputOffset())
	p.line += strings.Count(p.all[p.seen:at], "\n")
	p.seen = at
	return p.line
}

// scalar reads a string, a number or a word. It returns the content of a string.
func (p *parser) scalar() (string, error) {
	raw, err := p.dec.ReadValue()
	if err != nil {
		return "", err
	}
	at := int(p.dec.InputOffset())
	switch {
	case raw[0] != '"':
		return p.all[at-len(raw) : at], nil
	case bytes.IndexByte(raw, '\\') >= 0:
		content, err := jsontext.AppendUnquote(nil, raw)
		return string(content), err
	}
	return p.all[at-len(raw)+1 : at-1], nil
}

// root reads the value of the whole text.
func (p *parser) root() (v Value, err error) {
	if v.Kind = p.dec.PeekKind(); v.Kind != '{' {
		err = p.value(&v)
		return v, err
	}
	err = p.level(&v)
	v.raw = strings.TrimSpace(p.all)
	return v, err
}

// level reads an object or array, and the objects and arrays in it as JSON texts.
func (p *parser) level(v *Value) error {
	if _, err := p.dec.ReadToken(); err != nil {
		return err
	}
	v.Line = p.here()
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
		if v.Members == nil {
			v.Members = make([]Named, 0, 4)
		}
		v.Members = append(v.Members, Named{})
		m := &v.Members[len(v.Members)-1]
		var err error
		if m.Name, err = p.scalar(); err != nil {
			return err
		}
		m.Line = p.here()
		if err = p.value(&m.Value); err != nil {
			return err
		}
	}
}

// value reads a value, an object or array as a JSON text.
func (p *parser) value(v *Value) (err error) {
	if v.Kind = p.dec.PeekKind(); v.Kind != '{' && v.Kind != '[' {
		v.Text, err = p.scalar()
		v.Line = p.here()
		return err
	}
	if _, err = p.dec.ReadToken(); err != nil {
		return err
	}
	v.Line = p.here()
	from, inside := p.seen-1, p.dec.StackDepth()
	deepest := inside
	for p.dec.StackDepth() >= inside {
		if _, err = p.dec.ReadToken(); err != nil {
			return err
		}
		deepest = max(deepest, p.dec.StackDepth())
	}
	p.here()
	v.raw = p.all[from:p.seen]
	if deepest > p.depth {
		return errDepth
	}
	return nil
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
	if v.raw != "" {
		return jsontext.Value(v.raw), true
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
	return core.MaskSecrets(strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return unicode.ReplacementChar
		}
		return r
	}, name))
}
