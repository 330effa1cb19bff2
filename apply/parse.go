package apply

import (
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
	"sort"
	"strconv"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

// The bounds of a file.
const (
	MaxSize  = 16 << 20  // bytes
	maxParts = 1_000_000 // lines, list items, commas and brackets: they bound the memory for the parsed file
	maxDepth = 32        // nesting of metadata
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
