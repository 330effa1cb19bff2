package apply

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"sort"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
	"go.yaml.in/yaml/v3"

	"github.com/limitkeeper/limitkeeper/core/document"
)

// The bounds of a file.
const (
	MaxSize  = 16 << 20  // bytes
	maxParts = 1_000_000 // lines, list items, commas and brackets: they bound the memory for the parsed file
	maxDepth = 38        // nesting: that of a body of the REST API with the metadata of a key, inside accounts, users and keys
)

// parse parses a file of one JSON value or one YAML document. It returns nil after adding a problem.
func parse(data []byte, problems *Problems) *document.Value {
	data = bytes.TrimPrefix(data, []byte("\ufeff"))
	switch {
	case len(data) > MaxSize:
		problems.add(0, "", fmt.Sprintf("The file is larger than %d MiB", MaxSize>>20))
	case !utf8.Valid(data):
		problems.add(0, "", "The file must be valid UTF-8")
	case countParts(data) > maxParts:
		problems.add(0, "", fmt.Sprintf("The file has more than %d lines, list items, commas and brackets", maxParts))
	case bytes.HasPrefix(bytes.TrimSpace(data), []byte("{")) && json.Valid(data):
		v := new(document.Value)
		if fault, ok := errors.AsType[*document.SyntaxError](v.ParseJSON(data, maxDepth)); ok {
			path := ""
			for token := range fault.At.Tokens() {
				if _, err := strconv.Atoi(token); err == nil {
					path += "[" + token + "]"
				} else {
					path = document.Join(path, document.Shown(token))
				}
			}
			problems.add(fault.Line, path, fault.Text)
			return nil
		}
		return v
	default:
		if n := parseYAML(data, problems); n != nil {
			return new(convert(n, "", 0, problems))
		}
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
	line, text := splitLine(err)
	problems.add(lineOfError(data, line, text), "", "This is no YAML: "+text)
	return nil
}

// splitLine splits an error of the YAML parser into its line, 0 for none, and the rest.
func splitLine(err error) (line int, text string) {
	text = strings.TrimPrefix(err.Error(), "yaml: ")
	if m := yamlLine.FindStringSubmatch(text); m != nil {
		line, _ = strconv.Atoi(m[1])
		text = text[len(m[0]):]
	}
	return line, text
}

// lineOfError returns the line at which the YAML parser finds an error. The parser itself names the line where the surrounding block
// begins, or the line before it. The error is in the last line of the shortest beginning of the file that has it.
func lineOfError(data []byte, named int, text string) int {
	const most = 1 << 20 // bytes: parsing takes about 0.1 s for a MiB
	if len(data) > most {
		return named
	}
	lines := bytes.SplitAfter(data, []byte("\n"))
	first := sort.Search(len(lines), func(n int) bool {
		var doc yaml.Node
		err := yaml.Unmarshal(bytes.Join(lines[:n+1], nil), &doc)
		if err == nil {
			return false
		}
		_, other := splitLine(err)
		return other == text
	})
	return min(first+1, len(lines))
}

// decimal matches a whole number. YAML reads other notations too, such as 0o17 and 0x1F; a leading zero means an octal number to some readers.
var decimal = regexp.MustCompile(`^-?(0|[1-9][0-9_]*)$`)

// convert turns a node of YAML into a value. What only YAML has is a problem, and its value has the kind 0: aliases (nine lines of them can
// stand for a million values), merge keys, and names that are no strings.
func convert(n *yaml.Node, path string, depth int, problems *Problems) (v document.Value) {
	v.Line = n.Line
	if depth > maxDepth {
		problems.add(n.Line, path, "Must not be nested that deeply")
		return v
	}
	switch n.Kind {
	case yaml.AliasNode:
		problems.add(n.Line, "", fmt.Sprintf("Aliases are not supported: write the value in place of *%s", document.Shown(n.Value)))
	case yaml.SequenceNode:
		v.Kind = '['
		for i, item := range n.Content {
			v.Items = append(v.Items, convert(item, fmt.Sprintf("%s[%d]", path, i), depth+1, problems))
		}
	case yaml.MappingNode:
		v.Kind = '{'
		lines := map[string]int{}
		for i := 0; i+1 < len(n.Content); i += 2 {
			name := n.Content[i]
			first, twice := lines[name.Value]
			at := document.Join(path, document.Shown(name.Value))
			switch {
			case name.ShortTag() == "!!merge":
				problems.add(name.Line, path, "Merge keys (<<) are not supported: write the members in their place")
			case name.Kind != yaml.ScalarNode || name.ShortTag() != "!!str":
				problems.add(name.Line, path, "The name of a member must be a plain string")
			case twice:
				problems.add(name.Line, at, fmt.Sprintf("Must not be given twice: it is in line %d too", first))
			default:
				lines[name.Value] = name.Line
				v.Members = append(v.Members, document.Named{Name: name.Value, Line: name.Line, Value: convert(n.Content[i+1], at, depth+1, problems)})
			}
		}
	default:
		v.Kind, v.Text = scalar(n)
	}
	n.Content = nil // it is not needed any more
	return v
}

// scalar returns the kind of JSON and the text of a scalar. A value that JSON does not have is a number that no reader accepts. A date that
// YAML reads as a time is a string.
func scalar(n *yaml.Node) (jsontext.Kind, string) {
	switch tag := n.ShortTag(); {
	case tag == "!!str" || tag == "!!timestamp":
		return '"', n.Value
	case tag == "!!null" && slices.Contains([]string{"", "~", "null"}, strings.ToLower(n.Value)):
		return 'n', ""
	case tag == "!!bool":
		if v, err := strconv.ParseBool(strings.ToLower(n.Value)); err == nil {
			return map[bool]jsontext.Kind{true: 't', false: 'f'}[v], ""
		}
	case tag == "!!int" && decimal.MatchString(n.Value), tag == "!!float" && decimal.MatchString(n.Value):
		return '0', strings.ReplaceAll(n.Value, "_", "")
	case tag == "!!float" && jsontext.Value(n.Value).Kind() == '0':
		return '0', n.Value
	}
	return '0', "!"
}
