package apply

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"go.yaml.in/yaml/v3"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/internal/nearest"
)

// reader reads the values of nodes, and collects the problems.
type reader struct {
	*Problems
	broken []brokenRule
}

// resolve returns a node, nil after adding the problem of an alias. Nine lines of aliases can stand for a million values.
func (r *reader) resolve(n *yaml.Node) *yaml.Node {
	if n.Kind == yaml.AliasNode {
		r.add(n.Line, "", fmt.Sprintf("Aliases are not supported: write the value in place of *%s", shown(n.Value)))
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
	known []string              // the members that were asked for
}

// object returns a mapping, nil after adding a problem.
func (r *reader) object(n *yaml.Node, path string) *object {
	return r.objectLike(n, path, "Must be an object with members")
}

// objectLike is object with the text of the problem of another value.
func (r *reader) objectLike(n *yaml.Node, path, want string) *object {
	if n = r.resolve(n); n == nil {
		return nil
	}
	if n.Kind != yaml.MappingNode {
		r.add(n.Line, path, want)
		return nil
	}
	o := &object{r: r, position: position{n.Line, path, map[string]int{}}, left: map[string]*yaml.Node{}}
	for i := 0; i+1 < len(n.Content); i += 2 {
		name := n.Content[i]
		if name.ShortTag() == "!!merge" {
			r.add(name.Line, path, "Merge keys (<<) are not supported: write the members in their place")
			continue
		}
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
	o.known = append(o.known, name)
	return n
}

// given reports whether the file has a member, right or wrong.
func (o *object) given(name string) bool {
	_, given := o.members[name]
	return given
}

// end refuses the members that were not taken.
func (o *object) end() {
	for _, name := range o.names {
		if _, left := o.left[name.Value]; !left {
			continue
		}
		o.r.add(name.Line, join(o.path, shown(name.Value)), "Unknown member"+o.hint(name.Value))
	}
}

// hint returns the end of the problem of an unknown member: what its author probably meant.
func (o *object) hint(name string) string {
	of := objectOf[name]
	switch {
	case (name == "key" || name == "api_key") && slices.Contains(o.known, digestMember):
		return ": a file has no values of keys. Give the SHA-256 of the value as " + digestMember
	case of != "":
		return ": it is a member of " + of + ", so check the indentation"
	}
	return nearest.Hint(name, o.known)
}

// objectOf names the object of each member that only one object has.
var objectOf = map[string]string{
	"max_requests": "a plan", "request_period": "a plan", "limits": "a plan", "rate": "a plan", "is_active": "a plan", "features": "a plan",
	"external_id": "a user", "email": "a user", "custom_start": "a user", "is_disabled": "a user", "keys": "a user",
	"key_prefix": "an account", "users": "an account",
	"status": "a key", "expires_at": "a key", digestMember: "a key",
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
		if n.ShortTag() == "!!null" {
			want = "Cannot be null; leave it out or give a value"
		}
		o.r.add(n.Line, join(o.path, name), want)
		return nil
	}
	return &v
}

// optional returns a member that may be null, unset after adding a problem.
func optional[T any](o *object, name, want string, read func(*yaml.Node) (T, bool)) core.Optional[T] {
	if n := o.left[name]; n != nil && n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null" {
		o.take(name)
		return core.Null[T]()
	}
	before := o.r.Total
	v := member(o, name, want, read)
	if o.r.Total > before { // v lacks the wrong part
		v = nil
	}
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
