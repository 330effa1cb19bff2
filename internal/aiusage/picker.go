// Package aiusage reads the usage of a model from an answer that arrives in pieces: of the APIs of OpenAI, Anthropic and Gemini, or at a
// path of any JSON. It buffers at most [MaxBuffered] bytes of an answer.
package aiusage

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
)

// MaxBuffered bounds the bytes of an answer or of a request that are in memory at once.
const MaxBuffered = 64 << 10

// Picker finds values by their paths in a JSON text (RFC 8259) that passes in pieces, and checks the text. A path has the names of members
// with dots between them, and [] for the items of an array; the path of the whole text is "". If a path occurs more than once, Get returns the last value.
//
// Picker takes the place of encoding/json and of go-json-experiment's jsontext, which both buffer the longest string of a text: an image may have
// megabytes.
type Picker struct {
	wanted      *node
	found       map[string]*Picked
	noteSimilar bool
	maxValue    int64 // a longer value is not kept

	frames   []frame // the open objects and arrays
	expect   expectation
	token    token
	number   numberState
	literal  string        // the bytes of true, false or null that must follow
	hex      int           // digits left of an escape with \u
	name     []byte        // the name of a member that is being read, with its quotes and escapes
	fold     [maxName]byte // the name without case, _ and -
	captures []*Picked     // the wanted values that have begun and not ended

	read int64
	err  error
}

// Picked is the value at a path.
type Picked struct {
	Raw      []byte // as it stands in the text; nil if it is longer than MaxBuffered, or than the bound of KeepAtMost
	From, To int64  // its offsets in the text
	Count    int    // how many values of the text have the path
	Empty    bool   // an object or array without members or items
	Similar  string // with NoteSimilar: another member of the same object, whose name is equal without case, _ and -; "" for none
}

// Seen reports whether the text has a value at the path.
func (v Picked) Seen() bool { return v.Count > 0 }

// Errors of a Picker.
var (
	errNotJSON = errors.New("is not JSON")
	errMore    = errors.New("has more than one JSON value")
	errDeep    = fmt.Errorf("is nested more than %d levels deep", maxDepth)
)

// maxDepth bounds the open objects and arrays, as encoding/json does: a frame takes 24 bytes.
const maxDepth = 10_000

// maxName bounds the name of a member in bytes, with escapes: a longer name matches no path.
const maxName = 512

// node is a value that is wanted, or has wanted values inside.
type node struct {
	members map[string]*node
	folded  map[string]*node // the members by foldName, with NoteSimilar
	items   *node            // of an array
	value   *Picked          // nil if only values inside are wanted
}

// frame is an open object or array.
type frame struct {
	*node  // nil if nothing inside is wanted
	object bool
	next   *node // of the value that comes next
}

// expectation is the part of a JSON text that may come next, besides white space.
type expectation uint8

const (
	expectValue expectation = iota
	expectFirstItem
	expectFirstName
	expectName
	expectColon
	expectComma // or the end of the object or array
	expectEnd   // of the text
)

// token is the kind of the token that is being read.
type token uint8

const (
	noToken token = iota
	stringToken
	escapeToken // the character after a backslash
	hexToken
	numberToken
	literalToken
)

// NewPicker returns a picker of the values at some paths.
func NewPicker(paths ...string) *Picker {
	p := &Picker{wanted: new(node), found: map[string]*Picked{}, maxValue: MaxBuffered}
	for _, path := range paths {
		n := p.wanted
		if path != "" {
			for name := range strings.SplitSeq(path, ".") {
				n = n.child(name)
			}
		}
		if n.value == nil {
			n.value = new(Picked)
		}
		p.found[path] = n.value
	}
	return p
}

// KeepAtMost makes the picker drop values of more than n bytes, instead of [MaxBuffered]. Call it before Write.
func (p *Picker) KeepAtMost(n int64) { p.maxValue = n }

// NoteSimilar makes the picker set Similar of a [Picked]: some parsers take Max_Tokens for max_tokens. Call it before Write.
func (p *Picker) NoteSimilar() {
	p.noteSimilar = true
	p.wanted.setFolded()
}

// setFolded sets the folded names of all wanted members.
func (n *node) setFolded() {
	n.folded = map[string]*node{}
	for name, inner := range n.members {
		n.folded[string(foldName(nil, []byte(name)))] = inner
		inner.setFolded()
	}
	if n.items != nil {
		n.items.setFolded()
	}
}

// child returns the node of a member, or of the items for [].
func (n *node) child(name string) *node {
	if name == "[]" {
		if n.items == nil {
			n.items = new(node)
		}
		return n.items
	}
	if n.members == nil {
		n.members = map[string]*node{}
	}
	if n.members[name] == nil {
		n.members[name] = new(node)
	}
	return n.members[name]
}

// Get returns the value at one of the paths.
func (p *Picker) Get(path string) Picked { return *p.found[path] }

// Text returns the string at one of the paths, "" if there is none.
func (p *Picker) Text(path string) (s string) {
	_ = json.Unmarshal(p.found[path].Raw, &s)
	return s
}

// Complete reports whether the value of the text has ended. A number ends with the text: call Close first.
func (p *Picker) Complete() bool { return p.expect == expectEnd && p.token == noToken }

// Close ends the text. It returns an error if the text is not exactly one JSON value. The error completes a sentence about the text.
func (p *Picker) Close() error {
	if p.err == nil && p.token == numberToken {
		p.endNumber()
	}
	if p.err == nil && !p.Complete() {
		p.err = errNotJSON
	}
	return p.err
}

// Reset begins another text.
func (p *Picker) Reset() {
	for _, v := range p.found {
		*v = Picked{}
	}
	*p = Picker{wanted: p.wanted, found: p.found, noteSimilar: p.noteSimilar, maxValue: p.maxValue, frames: p.frames[:0], name: p.name[:0], captures: p.captures[:0]}
}

// Write reads the next piece of the text. After an error it reads nothing.
func (p *Picker) Write(b []byte) {
	for i := 0; i < len(b) && p.err == nil; i++ {
		if p.token == stringToken { // most bytes are of long strings
			n := 0
			for n < len(b)-i && b[i+n] != '"' && b[i+n] != '\\' && b[i+n] >= ' ' {
				n++
			}
			p.keep(b[i : i+n])
			p.read += int64(n)
			if i += n; i == len(b) {
				return
			}
		}
		p.next(b[i], b[i:i+1])
		p.read++
	}
}

// next reads the byte c. raw has the same byte as a slice.
func (p *Picker) next(c byte, raw []byte) {
	switch p.token {
	case stringToken:
		p.keep(raw)
		switch {
		case c == '"':
			p.token = noToken
			p.endString()
		case c == '\\':
			p.token = escapeToken
		case c < ' ':
			p.err = errNotJSON
		}
		return
	case escapeToken:
		p.keep(raw)
		switch p.token = stringToken; {
		case c == 'u':
			p.token, p.hex = hexToken, 4
		case strings.IndexByte(`"\/bfnrt`, c) < 0:
			p.err = errNotJSON
		}
		return
	case hexToken:
		p.keep(raw)
		if p.hex--; p.hex == 0 {
			p.token = stringToken
		}
		if !('0' <= c && c <= '9' || 'a' <= c|0x20 && c|0x20 <= 'f') {
			p.err = errNotJSON
		}
		return
	case literalToken:
		p.keep(raw)
		if c != p.literal[0] {
			p.err = errNotJSON
		}
		if p.literal = p.literal[1:]; p.literal == "" {
			p.token = noToken
			p.endValue(p.read + 1)
		}
		return
	case numberToken:
		if n := p.number.next(c); n != notNumber {
			p.number = n
			p.keep(raw)
			return
		}
		p.endNumber()
	}
	if p.err == nil && c != ' ' && c != '\n' && c != '\r' && c != '\t' {
		p.readStructural(c)
	}
	p.keep(raw)
	if (c == '}' || c == ']') && p.err == nil {
		p.endValue(p.read + 1)
	}
}
