package apply

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"

	"github.com/limitkeeper/limitkeeper/core"
)

// The bounds of a file.
const (
	MaxSize   = 16 << 20  // bytes
	maxParts  = 1_000_000 // lines, list items, commas and brackets: they bound the memory for the parsed file
	maxValues = 3_000_000 // after the expansion of aliases
	maxDepth  = 32        // nesting of metadata
)

// parseNode parses a file of one JSON value or one YAML document. It returns nil after adding a problem.
func parseNode(data []byte, problems *Problems) *yaml.Node {
	switch {
	case len(data) > MaxSize:
		problems.add(0, "", fmt.Sprintf("The file is larger than %d MiB", MaxSize>>20))
	case !utf8.Valid(data):
		problems.add(0, "", "The file must be valid UTF-8")
	case countParts(data) > maxParts:
		problems.add(0, "", fmt.Sprintf("The file has more than %d lines, list items, commas and brackets", maxParts))
	case bytes.HasPrefix(bytes.TrimSpace(data), []byte("{")) && json.Valid(data):
		return (&jsonReader{data: data, dec: newNumberDecoder(data), line: 1}).node()
	default:
		return parseYAML(data, problems)
	}
	return nil
}

// countParts returns an upper bound for half the number of values in a YAML document.
func countParts(data []byte) (n int) {
	for _, part := range []string{"\n", "\r", ",", "[", "{", "- ", "-\t", "? ", "?\t"} {
		n += bytes.Count(data, []byte(part))
	}
	return n
}

// yamlLine matches the line in an error of the YAML parser.
var yamlLine = regexp.MustCompile(`^line (\d+): `)

func parseYAML(data []byte, problems *Problems) *yaml.Node {
	dec := yaml.NewDecoder(bytes.NewReader(data))
	var doc, second yaml.Node
	err := dec.Decode(&doc)
	if len(doc.Content) == 0 && (err == nil || err.Error() == "EOF") {
		problems.add(0, "", "The file is empty")
		return nil
	}
	if err == nil {
		if dec.Decode(&second) == nil {
			problems.add(second.Line, "", "The file must have one document only")
			return nil
		}
		return doc.Content[0]
	}
	text, line := strings.TrimPrefix(err.Error(), "yaml: "), 0
	if m := yamlLine.FindStringSubmatch(text); m != nil {
		line, _ = strconv.Atoi(m[1])
		text = text[len(m[0]):]
	}
	problems.add(line, "", "This is no YAML: "+text)
	return nil
}

// jsonReader turns a valid JSON text into nodes of YAML.
type jsonReader struct {
	data []byte
	dec  *json.Decoder
	line int // at the offset seen
	seen int
}

func newNumberDecoder(data []byte) *json.Decoder {
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	return dec
}

// node reads the next value, or returns nil at the end of a list or object.
func (r *jsonReader) node() *yaml.Node {
	t, _ := r.dec.Token() // the text is valid
	end := int(r.dec.InputOffset())
	r.line += bytes.Count(r.data[r.seen:end], []byte("\n"))
	r.seen = end
	scalar := func(tag, value string) *yaml.Node {
		return &yaml.Node{Kind: yaml.ScalarNode, Tag: tag, Value: value, Line: r.line}
	}
	switch v := t.(type) {
	case string:
		return scalar("!!str", v)
	case bool:
		return scalar("!!bool", strconv.FormatBool(v))
	case json.Number:
		tag := "!!int"
		if strings.ContainsAny(v.String(), ".eE") {
			tag = "!!float"
		}
		return scalar(tag, v.String())
	case json.Delim:
		if v == ']' || v == '}' {
			return nil
		}
		n := &yaml.Node{Kind: yaml.SequenceNode, Tag: "!!seq", Line: r.line}
		if v == '{' {
			n.Kind, n.Tag = yaml.MappingNode, "!!map"
		}
		for item := r.node(); item != nil; item = r.node() {
			n.Content = append(n.Content, item)
		}
		return n
	}
	return scalar("!!null", "null")
}

// reader reads the values of nodes, and collects the problems.
type reader struct {
	*Problems
	values int // read so far
}

// resolve follows an alias. It returns nil when the file has expanded to too many values.
func (r *reader) resolve(n *yaml.Node) *yaml.Node {
	for n.Kind == yaml.AliasNode && r.values <= maxValues {
		n = n.Alias
		r.values++
	}
	if r.values++; r.values > maxValues {
		if r.values < math.MaxInt/2 { // once
			r.add(n.Line, "", fmt.Sprintf("The aliases of the file expand to more than %d values", maxValues))
			r.values = math.MaxInt / 2
		}
		return nil
	}
	return n
}

// list returns the items of a list, and false after adding a problem.
func (r *reader) list(n *yaml.Node, path, want string) ([]*yaml.Node, bool) {
	if n = r.resolve(n); n == nil {
		return nil, false
	}
	if n.Kind != yaml.SequenceNode {
		r.add(n.Line, path, want)
		return nil, false
	}
	return n.Content, true
}

// object is a mapping with known members.
type object struct {
	r *reader
	position
	names []*yaml.Node
	left  map[string]*yaml.Node // the members that were not taken
}

// object returns a mapping, nil after adding a problem.
func (r *reader) object(n *yaml.Node, path string) *object {
	if n = r.resolve(n); n == nil {
		return nil
	}
	if n.Kind != yaml.MappingNode {
		r.add(n.Line, path, "Must be an object with members")
		return nil
	}
	o := &object{r: r, position: position{n.Line, path, map[string]int{}}, left: map[string]*yaml.Node{}}
	for i := 0; i+1 < len(n.Content); i += 2 {
		name := n.Content[i]
		if name.Kind != yaml.ScalarNode || name.ShortTag() != "!!str" {
			r.add(name.Line, path, "The name of a member must be a plain string")
			continue
		}
		if first, twice := o.members[name.Value]; twice {
			r.add(name.Line, join(path, shown(name.Value)), fmt.Sprintf("Must not be given twice: it is in line %d too", first))
			continue
		}
		o.members[name.Value], o.left[name.Value] = name.Line, n.Content[i+1]
		o.names = append(o.names, name)
	}
	return o
}

// shown returns the name of an unknown member for a problem, shortened to 64 bytes. Control characters, which could change a
// terminal or begin a line, are replaced.
func shown(name string) string {
	const most = 64
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return unicode.ReplacementChar
		}
		return r
	}, strings.ToValidUTF8(name[:min(len(name), most)], ""))
}

// take returns the value of a member, nil for a missing member, and marks the member as known.
func (o *object) take(name string) *yaml.Node {
	n := o.left[name]
	delete(o.left, name)
	return n
}

// end refuses the members that were not taken.
func (o *object) end() {
	for _, name := range o.names {
		if _, left := o.left[name.Value]; left {
			o.r.add(name.Line, join(o.path, shown(name.Value)), "Unknown member")
		}
	}
}

// member returns a member, nil when it is missing or wrong.
func member[T any](o *object, name, want string, read func(*yaml.Node) (T, bool)) *T {
	n := o.take(name)
	if n == nil {
		return nil
	}
	if n = o.r.resolve(n); n == nil {
		return nil
	}
	v, ok := read(n)
	if !ok {
		o.r.add(n.Line, join(o.path, name), want)
		return nil
	}
	return &v
}

// optional returns a member that may be null.
func optional[T any](o *object, name, want string, read func(*yaml.Node) (T, bool)) core.Optional[T] {
	if n := o.left[name]; n != nil && n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null" {
		o.take(name)
		return core.Null[T]()
	}
	v := member(o, name, want, read)
	return core.Optional[T]{Set: v != nil, Value: v}
}

const (
	wantText   = "Must be a string; put it in quotation marks"
	wantTexts  = "Must be a list of strings"
	wantFlag   = "Must be true or false"
	wantWhole  = "Must be a whole number in decimal digits"
	wantTime   = "Must be a time as in RFC 3339, such as 2030-01-31T00:00:00Z"
	wantStart  = "Must be a time as in RFC 3339, or a date, from 1970 on, such as 2030-01-31T00:00:00Z or 2030-01-31"
	wantDigest = "Must be the SHA-256 of the value of the key, as 64 hexadecimal digits or in base64"
	wantLimits = "Must be a list of limits, such as {meter: tokens, max: 1000, period: month}"
	wantRate   = "Must be a rate, such as {requests: 10, per: second, burst: 20}"
	wantObject = "Must be an object as in JSON"
)

// readText reads a string. A date that YAML reads as a time is a string here.
func readText(n *yaml.Node) (string, bool) {
	tag := n.ShortTag()
	return n.Value, n.Kind == yaml.ScalarNode && (tag == "!!str" || tag == "!!timestamp")
}

func readFlag(n *yaml.Node) (v, ok bool) {
	v, err := strconv.ParseBool(strings.ToLower(n.Value))
	return v, n.Kind == yaml.ScalarNode && n.ShortTag() == "!!bool" && err == nil
}

// decimal matches a whole number. A leading zero is refused: it means an octal number to some readers.
var decimal = regexp.MustCompile(`^-?(0|[1-9][0-9_]*)$`)

// readWhole reads a whole number. A number outside int64 becomes the nearest int64, which is outside the range of every
// member.
func readWhole(n *yaml.Node) (int64, bool) {
	switch {
	case n.Kind != yaml.ScalarNode:
	case n.ShortTag() == "!!int" && decimal.MatchString(n.Value),
		n.ShortTag() == "!!float" && decimal.MatchString(n.Value): // YAML reads large whole numbers as floats
		v, _ := strconv.ParseInt(strings.ReplaceAll(n.Value, "_", ""), 10, 64)
		return v, true
	case n.ShortTag() == "!!float": // 1e6
		v, err := strconv.ParseFloat(n.Value, 64)
		return int64(v), err == nil && v == math.Trunc(v) && math.Abs(v) < 1<<53
	}
	return 0, false
}

// readTime reads an instant, truncated to the millisecond as in the store.
func readTime(n *yaml.Node) (t time.Time, ok bool) {
	text, ok := readText(n)
	err := t.UnmarshalText([]byte(text))
	if y := t.UTC().Year(); err != nil || y > 9999 || y < 0 {
		return t, false
	}
	return t.UTC().Truncate(time.Millisecond), ok
}

// readStart reads a start of windows: an instant, or the beginning of a day in UTC.
func readStart(n *yaml.Node) (time.Time, bool) {
	text, ok := readText(n)
	t, err := time.Parse(time.RFC3339, text)
	if err != nil {
		t, err = time.Parse(time.DateOnly, text)
	}
	y := t.UTC().Year()
	return t.UTC(), ok && err == nil && y >= 1970 && y <= 9999
}

// texts reads a list of strings.
func (r *reader) texts(n *yaml.Node) ([]string, bool) {
	list := []string{}
	for _, item := range n.Content {
		if item = r.resolve(item); item == nil {
			return nil, true // the problem is known
		}
		text, ok := readText(item)
		if !ok {
			return nil, false
		}
		list = append(list, text)
	}
	return list, n.Kind == yaml.SequenceNode
}

// json returns a member with free content as a compact JSON text with sorted names.
func (o *object) json(name string) core.Optional[json.RawMessage] {
	return optional(o, name, wantObject, func(n *yaml.Node) (json.RawMessage, bool) {
		if n.Kind != yaml.MappingNode {
			return nil, false
		}
		v, ok := o.r.json(n, join(o.path, name), 1)
		if !ok {
			return nil, true // the problem is known
		}
		text, err := encode(v)
		return text, err == nil
	})
}

// json returns a value as encoding/json encodes it, and false after adding a problem.
func (r *reader) json(n *yaml.Node, path string, depth int) (any, bool) {
	if n = r.resolve(n); n == nil {
		return nil, false
	}
	if depth > maxDepth {
		r.add(n.Line, path, "Must not be nested that deeply")
		return nil, false
	}
	switch n.Kind {
	case yaml.SequenceNode:
		list := make([]any, len(n.Content))
		for i, item := range n.Content {
			v, ok := r.json(item, fmt.Sprintf("%s[%d]", path, i), depth+1)
			if !ok {
				return nil, false
			}
			list[i] = v
		}
		return list, true
	case yaml.MappingNode:
		o := r.object(n, path)
		if o == nil {
			return nil, false
		}
		members := map[string]any{}
		for _, name := range o.names {
			v, ok := r.json(o.take(name.Value), join(path, shown(name.Value)), depth+1)
			if !ok {
				return nil, false
			}
			members[name.Value] = v
		}
		return members, true
	}
	return r.jsonScalar(n, path)
}

func (r *reader) jsonScalar(n *yaml.Node, path string) (any, bool) {
	switch n.ShortTag() {
	case "!!str", "!!timestamp":
		return n.Value, true
	case "!!null":
		return nil, true
	case "!!bool":
		if v, ok := readFlag(n); ok {
			return v, true
		}
	case "!!int", "!!float":
		if json.Valid([]byte(n.Value)) {
			return json.Number(n.Value), true
		}
	}
	r.add(n.Line, path, "Must be a value as in JSON")
	return nil, false
}

// encode returns a compact JSON text with sorted names.
func encode(v any) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	err := enc.Encode(v)
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), err
}
