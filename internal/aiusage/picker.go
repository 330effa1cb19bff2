// Package aiusage reads the usage of a model out of an answer that passes in pieces: of the APIs of OpenAI, Anthropic and Gemini, or at a
// path of any JSON. It holds at most [MaxHeld] bytes of an answer.
package aiusage

import "bytes"

// MaxHeld bounds the bytes of an answer or of a request that are held at once.
const MaxHeld = 64 << 10

// Picker finds values by their paths in a JSON text that passes in pieces. A path has the names of members with dots between them, and []
// for any item of an array; the last value at a path is found. It is written here because decoders of JSON hold the longest string of a
// text, which may be an image of megabytes: encoding/json and go-json-experiment's jsontext both do. It does not check the text: the
// program behind the gateway does.
type Picker struct {
	found map[string]*Picked // by path
	depth int                // of the longest path

	frames   []frame
	key      []byte
	inKey    bool
	inString bool
	escaped  bool
	capture  *Picked // the value that passes now
	at       int     // how deep its member is

	read int64 // bytes so far
	end  int64 // the offset of the brace that ends the text, 0 before it
}

// Picked is a value of a text.
type Picked struct {
	Raw      []byte // nil if there is none, or if it is longer than MaxHeld
	From, To int64  // its offsets in the text
	Seen     bool
}

// maxKey bounds the name of a member in bytes: a longer one is not wanted.
const maxKey = 64

// frame is an open object or array.
type frame struct {
	object  bool
	wantKey bool   // a string is the name of a member
	path    string // of its present member or item, "" if it is deeper than any wanted path
}

// NewPicker returns a picker of the values at some paths.
func NewPicker(paths ...string) *Picker {
	p := &Picker{found: map[string]*Picked{}}
	for _, path := range paths {
		p.found[path] = new(Picked)
		p.depth = max(p.depth, 1+bytes.Count([]byte(path), []byte(".")))
	}
	return p
}

// Get returns the value at one of the paths: Seen is false if the text has none so far.
func (p *Picker) Get(path string) Picked { return *p.found[path] }

// Text returns the string at one of the paths, "" for none and for a string with escapes.
func (p *Picker) Text(path string) string {
	raw := p.found[path].Raw
	if len(raw) < 2 || raw[0] != '"' || bytes.IndexByte(raw, '\\') >= 0 {
		return ""
	}
	return string(raw[1 : len(raw)-1])
}

// Ended reports whether the text has ended, and the offset of its last brace.
func (p *Picker) Ended() (at int64, ok bool) { return p.end, p.end > 0 }

// Reset begins another text.
func (p *Picker) Reset() {
	for _, v := range p.found {
		*v = Picked{Raw: v.Raw[:0]}
		v.Raw = nil
	}
	p.frames, p.inKey, p.inString, p.escaped, p.capture, p.read, p.end = p.frames[:0], false, false, false, nil, 0, 0
}

// Write reads the next piece of the text.
func (p *Picker) Write(b []byte) {
	for i := 0; i < len(b); i++ {
		if p.inString && !p.escaped && !p.inKey { // most bytes are of long strings
			n := bytes.IndexAny(b[i:], `"\`)
			if n < 0 {
				n = len(b) - i
			}
			p.keep(b[i : i+n])
			p.read += int64(n)
			if i += n; i == len(b) {
				return
			}
		}
		p.next(b[i])
		p.read++
	}
}

// next reads a byte.
func (p *Picker) next(c byte) {
	if p.inString {
		switch {
		case p.escaped:
			p.escaped = false
		case c == '\\':
			p.escaped = true
		case c == '"':
			p.inString = false
			if p.inKey {
				p.inKey = false
				p.named()
			}
		}
		if p.inKey && len(p.key) <= maxKey {
			p.key = append(p.key, c)
		}
		p.keep([]byte{c})
		return
	}
	switch c {
	case '"':
		p.inString = true
		if top := p.top(); top != nil && top.wantKey {
			p.inKey, top.wantKey, p.key = true, false, p.key[:0]
		}
	case '{', '[':
		p.keep([]byte{c})
		p.open(c == '{')
		return
	case '}', ']':
		p.endValue()
		if len(p.frames) > 0 {
			p.frames = p.frames[:len(p.frames)-1]
		}
		if p.keep([]byte{c}); len(p.frames) == 0 && p.end == 0 {
			p.end = p.read
		}
		return
	case ':':
		if top := p.top(); top != nil && top.object && p.capture == nil && top.path != "" {
			p.begin(top.path)
			return
		}
	case ',':
		p.endValue()
		if top := p.top(); top != nil {
			top.wantKey = top.object
		}
	}
	p.keep([]byte{c})
}

func (p *Picker) top() *frame {
	if len(p.frames) == 0 {
		return nil
	}
	return &p.frames[len(p.frames)-1]
}

// open opens an object or an array.
func (p *Picker) open(object bool) {
	f := frame{object: object, wantKey: object}
	if !object && len(p.frames) < p.depth {
		f.path = p.join("[]")
	}
	p.frames = append(p.frames, f)
}

// join returns the path of a member or item of the innermost frame that is open before it.
func (p *Picker) join(name string) string {
	if len(p.frames) == 0 {
		return name
	}
	if parent := p.frames[len(p.frames)-1].path; parent != "" {
		return parent + "." + name
	}
	return ""
}

// named notes the name of the member whose value follows.
func (p *Picker) named() {
	top := p.top()
	top.path = ""
	switch n := len(p.frames); {
	case n > p.depth || len(p.key) > maxKey:
	case n == 1:
		top.path = string(p.key)
	default:
		if parent := p.frames[n-2].path; parent != "" {
			top.path = parent + "." + string(p.key)
		}
	}
}

// begin begins to capture the value at a path, if it is wanted.
func (p *Picker) begin(path string) {
	v := p.found[path]
	if v == nil {
		return
	}
	*v = Picked{Raw: v.Raw[:0], From: p.read + 1, Seen: true}
	p.capture, p.at = v, len(p.frames)
}

// endValue ends the captured value if the present byte ends it.
func (p *Picker) endValue() {
	if p.capture == nil || len(p.frames) != p.at {
		return
	}
	v := p.capture
	raw := bytes.TrimLeft(v.Raw, " \t\r\n")
	v.From += int64(len(v.Raw) - len(raw))
	v.Raw = bytes.TrimRight(raw, " \t\r\n")
	v.To = p.read - int64(len(raw)-len(v.Raw))
	p.capture = nil
}

// keep adds bytes to the captured value. A value that is too long is dropped.
func (p *Picker) keep(b []byte) {
	v := p.capture
	if v == nil {
		return
	}
	if len(v.Raw)+len(b) > MaxHeld {
		p.capture, v.Raw = nil, nil
		return
	}
	v.Raw = append(v.Raw, b...)
}
