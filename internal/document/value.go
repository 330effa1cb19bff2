// Package document reads JSON and YAML by one set of rules: the bodies of the REST API, and files of accounts. It turns both into values
// with their lines, and values into the members of patches, as core describes them.
package document

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/limitkeeper/limitkeeper/core"
)

// MaxDepth is the deepest nesting of objects and arrays.
const MaxDepth = 32

// Value is a value of JSON, or the same in YAML.
type Value struct {
	Kind    jsontext.Kind // 'n', 't', 'f', '"', '0', '{' or '['; 0 for a value of YAML that JSON does not have
	Line    int           // from 1
	Text    string        // of a string or number
	Members []Named       // of an object
	Items   []Value       // of an array

	raw jsontext.Value // of a value of JSON; nil in YAML
}

// Named is a member of an object.
type Named struct {
	Name string
	Line int // of the name
	Value
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
// surrogate pair. The error is a [*SyntaxError]. The value refers to the text.
func ParseJSON(text []byte) (v Value, err error) {
	if !utf8.Valid(text) {
		return v, &SyntaxError{1, "", "Must be valid UTF-8"}
	}
	p := parser{dec: jsontext.NewDecoder(bytes.NewBuffer(text)), text: text, line: 1}
	if v, err = p.value(); err == nil {
		_, err = p.dec.ReadToken()
		if err == io.EOF {
			return v, nil
		}
		if err == nil {
			err = errors.New("a second value")
		}
	}
	return v, p.fault(err)
}

// parser parses JSON.
type parser struct {
	dec  *jsontext.Decoder
	text []byte
	line int // at the offset seen
	seen int
}

var errDepth = errors.New("too deep")

// here returns the line of the token that was read last.
func (p *parser) here() int {
	at := int(p.dec.InputOffset())
	p.line += bytes.Count(p.text[p.seen:at], []byte("\n"))
	p.seen = at
	return p.line
}

func (p *parser) value() (v Value, err error) {
	t, err := p.dec.ReadToken()
	if err != nil {
		return v, err
	}
	v.Kind, v.Line = t.Kind(), p.here()
	end := p.seen
	switch v.Kind {
	case '"', '0':
		v.Text = t.String()
		return v, nil
	case '{', '[':
	default:
		return v, nil
	}
	if p.dec.StackDepth() > MaxDepth {
		return v, errDepth
	}
	for p.dec.PeekKind() != '}' && p.dec.PeekKind() != ']' {
		var m Named
		if v.Kind == '{' {
			name, err := p.dec.ReadToken()
			if err != nil {
				return v, err
			}
			m.Name, m.Line = name.String(), p.here()
		}
		if m.Value, err = p.value(); err != nil {
			return v, err
		}
		if v.Kind == '{' {
			v.Members = append(v.Members, m)
		} else {
			v.Items = append(v.Items, m.Value)
		}
	}
	if _, err = p.dec.ReadToken(); err != nil {
		return v, err
	}
	v.raw = p.text[end-1 : p.dec.InputOffset()]
	return v, nil
}

// fault returns the error for an error of the decoder.
func (p *parser) fault(err error) *SyntaxError {
	at := min(max(p.seen, int(p.dec.InputOffset())), len(p.text))
	e := &SyntaxError{Line: 1 + bytes.Count(p.text[:at], []byte("\n")), Text: "Must be valid JSON"}
	switch s, _ := errors.AsType[*jsontext.SyntacticError](err); {
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
	if v.raw != nil {
		return v.raw, true
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
