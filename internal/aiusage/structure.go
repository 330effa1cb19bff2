package aiusage

import (
	"bytes"
	"encoding/json"
	"slices"
	"unicode/utf8"
)

// readStructural reads a byte that is neither white space nor a part of a token.
func (p *Picker) readStructural(c byte) {
	var top *frame
	if n := len(p.frames); n > 0 {
		top = &p.frames[n-1]
	}
	closes := top != nil && (c == '}' && top.object || c == ']' && !top.object)
	switch e := p.expect; {
	case e == expectEnd:
		p.err = errMore
	case closes && (e == expectComma || e == expectFirstItem || e == expectFirstName):
		if top.node != nil && top.value != nil {
			top.value.Empty = e != expectComma
		}
		p.frames = p.frames[:len(p.frames)-1] // the value ends behind this byte
	case e == expectComma && c == ',' && top.object:
		p.expect = expectName
	case e == expectComma && c == ',':
		p.expect, top.next = expectValue, top.itemNode()
	case e == expectColon && c == ':':
		p.expect = expectValue
	case (e == expectFirstName || e == expectName) && c == '"':
		p.token, p.name = stringToken, p.name[:0]
	case e == expectValue || e == expectFirstItem:
		p.beginValue(c)
	default:
		p.err = errNotJSON
	}
}

// itemNode returns the node of the items of an array.
func (f *frame) itemNode() *node {
	if f.node == nil {
		return nil
	}
	return f.items
}

// beginValue begins the value whose first byte is c.
func (p *Picker) beginValue(c byte) {
	n := p.wanted
	if depth := len(p.frames); depth > 0 {
		n = p.frames[depth-1].next
	}
	if n != nil && n.value != nil {
		v := n.value
		*v = Picked{From: p.read, Count: v.Count + 1, Similar: v.Similar}
		p.captures = append(p.captures, v)
	}
	switch {
	case c == '{' || c == '[':
		if len(p.frames) == maxDepth {
			p.err = errDeep
			return
		}
		f := frame{node: n, object: c == '{'}
		if p.expect = expectFirstName; !f.object {
			p.expect, f.next = expectFirstItem, f.itemNode()
		}
		p.frames = append(p.frames, f)
		return
	case c == '"':
		p.token = stringToken
	case c == 't':
		p.token, p.literal = literalToken, "rue"
	case c == 'f':
		p.token, p.literal = literalToken, "alse"
	case c == 'n':
		p.token, p.literal = literalToken, "ull"
	default:
		if p.token, p.number = numberToken, numberBegins.next(c); p.number == notNumber {
			p.err = errNotJSON
		}
	}
	p.expect = expectComma // once the token has ended
}

// endString ends the string that was read: a value, or the name of a member.
func (p *Picker) endString() {
	if p.expect != expectFirstName && p.expect != expectName {
		p.endValue(p.read + 1)
		return
	}
	p.expect = expectColon
	top := &p.frames[len(p.frames)-1]
	if top.next = nil; top.node == nil || len(top.members) == 0 || len(p.name) > maxName {
		return
	}
	raw := p.name[1 : len(p.name)-1]
	if top.next = top.members[string(raw)]; top.next != nil {
		return
	}
	if bytes.IndexByte(raw, '\\') >= 0 {
		var name string
		if json.Unmarshal(p.name, &name) != nil {
			p.err = errNotJSON
			return
		}
		raw = []byte(name)
		top.next = top.members[name]
	}
	if top.next == nil && p.noteSimilar {
		if n := top.folded[string(foldName(p.fold[:0], raw))]; n != nil && n.value != nil {
			n.value.Similar = string(raw)
		}
	}
}

// foldName appends a name without case, _ and -: some parsers take maxTokens for max_tokens.
func foldName(b, name []byte) []byte {
	for i, c := range name {
		switch {
		case c >= utf8.RuneSelf: // some letters are equal to one of ASCII without case
			return append(b, bytes.ToLower(bytes.ToUpper(bytes.Map(dropSeparators, name[i:])))...)
		case 'A' <= c && c <= 'Z':
			b = append(b, c|0x20)
		case c != '_' && c != '-':
			b = append(b, c)
		}
	}
	return b
}

func dropSeparators(c rune) rune {
	if c == '_' || c == '-' {
		return -1
	}
	return c
}

// endValue ends the innermost open value at an offset.
func (p *Picker) endValue(at int64) {
	p.expect = expectComma
	n := p.wanted
	if depth := len(p.frames); depth == 0 {
		p.expect = expectEnd
	} else {
		n = p.frames[depth-1].next
	}
	if n == nil || n.value == nil {
		return
	}
	n.value.To = at
	p.captures = slices.DeleteFunc(p.captures, func(v *Picked) bool { return v == n.value })
}

// keep adds bytes to the name that is being read, and to each wanted value that is open. A value above the bound is dropped.
func (p *Picker) keep(b []byte) {
	if p.token != noToken && (p.expect == expectFirstName || p.expect == expectName) {
		p.name = append(p.name, b[:min(len(b), max(0, maxName+1-len(p.name)))]...)
	}
	for _, v := range p.captures {
		if int64(len(v.Raw)+len(b)) > p.maxValue || p.read-v.From > p.maxValue {
			v.Raw = nil
		} else {
			v.Raw = append(v.Raw, b...)
		}
	}
}

// endNumber ends the number that was read.
func (p *Picker) endNumber() {
	p.token = noToken
	if !p.number.ends() {
		p.err = errNotJSON
		return
	}
	p.endValue(p.read)
}

// numberState says which part of a number has been read.
type numberState uint8

const (
	notNumber numberState = iota
	numberBegins
	numberMinus
	numberZero
	numberInt
	numberDot
	numberFraction
	numberE
	numberSign
	numberExponent
)

// ends reports whether a number may end here.
func (s numberState) ends() bool {
	return s == numberZero || s == numberInt || s == numberFraction || s == numberExponent
}

// next returns the state after a byte, notNumber if the number does not go on with it.
func (s numberState) next(c byte) numberState {
	digit := '0' <= c && c <= '9'
	switch {
	case s == numberBegins && c == '-':
		return numberMinus
	case (s == numberBegins || s == numberMinus) && c == '0':
		return numberZero
	case (s == numberBegins || s == numberMinus || s == numberInt) && digit:
		return numberInt
	case (s == numberZero || s == numberInt) && c == '.':
		return numberDot
	case (s == numberDot || s == numberFraction) && digit:
		return numberFraction
	case (s == numberZero || s == numberInt || s == numberFraction) && c|0x20 == 'e':
		return numberE
	case s == numberE && (c == '+' || c == '-'):
		return numberSign
	case (s == numberE || s == numberSign || s == numberExponent) && digit:
		return numberExponent
	}
	return notNumber
}
