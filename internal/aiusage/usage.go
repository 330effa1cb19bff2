package aiusage

import (
	"bytes"
	"cmp"
	"encoding/json"
	"strconv"
)

// Quantities are numbers of units by their names: input, cached, cache_write, output and reasoning of a model.
type Quantities map[string]int64

// maxQuantity bounds each quantity.
const maxQuantity = 1_000_000_000

func (q Quantities) valid() bool {
	for _, n := range q {
		if n < 0 || n > maxQuantity {
			return false
		}
	}
	return true
}

// API is the wire format of answers.
type API string

// The wire formats.
const (
	OpenAI    API = "openai"    // chat completions, completions, embeddings, responses: https://platform.openai.com/docs/api-reference
	Anthropic API = "anthropic" // messages: https://docs.anthropic.com/en/api/messages-streaming
	Gemini    API = "gemini"    // generateContent: https://ai.google.dev/api/generate-content#UsageMetadata
)

// format says where the answers of an API have the usage.
type format struct {
	usages []string // paths of objects
	models []string // paths of texts
	ends   string   // the type of the event after which a usage is complete; "" if each is
}

var formats = map[API]format{
	OpenAI:    {usages: []string{"usage", "response.usage"}, models: []string{"model", "response.model"}},
	Anthropic: {usages: []string{"usage", "message.usage"}, models: []string{"model", "message.model"}, ends: "message_stop"},
	Gemini:    {usages: []string{"usageMetadata", "[].usageMetadata"}, models: []string{"modelVersion", "[].modelVersion"}},
}

// Formula returns the members of the formula that counts every token of an API once.
const Formula = "input + cached + cache_write + output"

// tokens are the members of the usage objects of all APIs. Of several objects in one answer, each overrides the members that it has.
type tokens struct {
	PromptTokens     int64 `json:"prompt_tokens"`
	CompletionTokens int64 `json:"completion_tokens"`
	InputTokens      int64 `json:"input_tokens"`
	OutputTokens     int64 `json:"output_tokens"`
	PromptDetails    struct {
		Cached int64 `json:"cached_tokens"`
	} `json:"prompt_tokens_details"`
	InputDetails struct {
		Cached int64 `json:"cached_tokens"`
	} `json:"input_tokens_details"`
	CompletionDetails struct {
		Reasoning int64 `json:"reasoning_tokens"`
	} `json:"completion_tokens_details"`
	OutputDetails struct {
		Reasoning int64 `json:"reasoning_tokens"`
	} `json:"output_tokens_details"`

	CacheRead  int64 `json:"cache_read_input_tokens"`
	CacheWrite int64 `json:"cache_creation_input_tokens"`

	Prompt     int64 `json:"promptTokenCount"`
	ToolPrompt int64 `json:"toolUsePromptTokenCount"`
	Cached     int64 `json:"cachedContentTokenCount"`
	Candidates int64 `json:"candidatesTokenCount"`
	Thoughts   int64 `json:"thoughtsTokenCount"`
}

// quantities returns the quantities of an answer of an API, nil if a number is out of bounds. input is without what came from a cache and what
// was written to one; output has the reasoning, which is also told apart.
func (u *tokens) quantities(a API) Quantities {
	q := Quantities{}
	switch a {
	case OpenAI:
		cached := u.PromptDetails.Cached + u.InputDetails.Cached
		q["input"], q["cached"] = u.PromptTokens+u.InputTokens-cached, cached
		q["output"], q["reasoning"] = u.CompletionTokens+u.OutputTokens, u.CompletionDetails.Reasoning+u.OutputDetails.Reasoning
	case Anthropic:
		q["input"], q["cached"], q["cache_write"], q["output"] = u.InputTokens, u.CacheRead, u.CacheWrite, u.OutputTokens
	case Gemini:
		q["input"], q["cached"] = u.Prompt+u.ToolPrompt-u.Cached, u.Cached
		q["output"], q["reasoning"] = u.Candidates+u.Thoughts, u.Thoughts
	}
	if !q.valid() {
		return nil
	}
	return q
}

// Reader reads the usage out of an answer that passes in pieces.
type Reader struct {
	api    API
	path   string // of a JSON value, without an API
	picker *Picker

	events  bool // the answer has server-sent events
	drop    bool // leave out the event that has only the usage
	line    lineState
	name    []byte // of the field of the present line
	pending []byte // the present event, while it may have to be left out
	passing bool   // the present event is too long to be left out

	tokens tokens
	usage  Quantities
	value  json.RawMessage // at the path
	model  string
	ended  bool // the event that ends the answer has passed
}

// lineState is where the next byte of server-sent events is.
type lineState uint8

const (
	lineBegins lineState = iota // at the beginning of a line
	lineName                    // in the name of its field
	lineData                    // in the value of a field data
	lineOther                   // in another field
)

// NewReader returns a reader for an answer of an API.
func NewReader(a API) *Reader {
	f := formats[a]
	return &Reader{api: a, picker: NewPicker(append(append([]string{"type", "choices"}, f.usages...), f.models...)...)}
}

// NewPathReader returns a reader for the value at a path of a JSON answer. Of server-sent events, the last one that has it counts.
func NewPathReader(path string) *Reader { return &Reader{path: path, picker: NewPicker(path)} }

// Events says that the answer has server-sent events. With dropUsage, the reader leaves out the event of a chat completion that has only
// the usage: the client has not asked for it.
func (r *Reader) Events(dropUsage bool) { r.events, r.drop = true, dropUsage }

// Pass reads the next piece of the answer, and returns what to relay of it now. The result is valid until the next call.
func (r *Reader) Pass(b []byte) []byte {
	if !r.events {
		r.picker.Write(b)
		return b
	}
	if !r.drop {
		for rest := b; len(rest) > 0; {
			n, _ := r.nextEvent(rest)
			rest = rest[n:]
		}
		return b
	}
	var relay []byte
	for rest := b; len(rest) > 0; {
		n, ended := r.nextEvent(rest)
		if r.passing {
			relay = append(relay, rest[:n]...)
		} else if r.pending = append(r.pending, rest[:n]...); len(r.pending) > MaxHeld {
			relay, r.pending, r.passing = append(relay, r.pending...), r.pending[:0], true
		}
		if ended != eventGoesOn {
			if ended == eventRelayed {
				relay = append(relay, r.pending...)
			}
			r.pending, r.passing = r.pending[:0], false
		}
		rest = rest[n:]
	}
	return relay
}

// Rest returns the bytes that Pass has held back. Call it when the answer has ended.
func (r *Reader) Rest() []byte {
	rest := r.pending
	r.pending = nil
	if !r.events {
		r.note()
	}
	return rest
}

// eventEnd says whether a piece ends an event.
type eventEnd uint8

const (
	eventGoesOn eventEnd = iota
	eventRelayed
	eventDropped
)

// nextEvent reads until the end of an event or of the piece, and returns how many bytes that are.
func (r *Reader) nextEvent(b []byte) (n int, end eventEnd) {
	for n < len(b) {
		line, more := bytes.IndexByte(b[n:], '\n'), true
		if line < 0 {
			line, more = len(b)-n, false
		}
		text := b[n : n+line]
		n += line
		if r.line == lineBegins && more && (len(text) == 0 || len(text) == 1 && text[0] == '\r') { // a blank line
			if end = eventRelayed; r.note() && r.drop {
				end = eventDropped
			}
			r.picker.Reset()
			return n + 1, end
		}
		for i, c := range text {
			if r.line == lineData {
				r.picker.Write(text[i:])
				break
			}
			r.readName(c)
		}
		if more {
			n++
			r.line, r.name = lineBegins, r.name[:0]
		}
	}
	return n, eventGoesOn
}

// readName reads a byte at the beginning of a line.
func (r *Reader) readName(c byte) {
	switch {
	case r.line == lineOther, c == '\r':
	case c == ':' && string(r.name) == "data":
		r.line = lineData
	case c == ':', len(r.name) == len("data"):
		r.line = lineOther
	default:
		r.line, r.name = lineName, append(r.name, c)
	}
}

// note takes the usage and the model out of an event, or out of the whole answer. It reports whether the event has nothing but the usage.
func (r *Reader) note() (onlyUsage bool) {
	if r.path != "" {
		if v := r.picker.Get(r.path); v.Seen && string(v.Raw) != "null" {
			r.value = bytes.Clone(v.Raw)
		}
		return false
	}
	f := formats[r.api]
	for _, path := range f.models {
		r.model = cmp.Or(r.picker.Text(path), r.model)
	}
	for _, path := range f.usages {
		v := r.picker.Get(path)
		if len(v.Raw) == 0 || v.Raw[0] != '{' || json.Unmarshal(v.Raw, &r.tokens) != nil {
			continue
		}
		r.usage = r.tokens.quantities(r.api)
		onlyUsage = r.usage != nil && string(r.picker.Get("choices").Raw) == "[]"
	}
	r.ended = r.ended || f.ends != "" && r.picker.Text("type") == f.ends
	return onlyUsage
}

// Usage returns the usage of the answer and its model, and false if the answer does not say its usage or has not ended.
func (r *Reader) Usage() (q Quantities, model string, known bool) {
	return r.usage, r.model, r.usage != nil && (r.ended || !r.events || formats[r.api].ends == "")
}

// Value returns the whole number or the object of whole numbers at the path, as quantities: a number has the name value.
func (r *Reader) Value() (q Quantities, known bool) {
	if len(r.value) == 0 {
		return nil, false
	}
	if r.value[0] != '{' {
		q = Quantities{}
		n, err := strconv.ParseInt(string(r.value), 10, 64)
		q["value"] = n
		return q, err == nil && q.valid()
	}
	err := json.Unmarshal(r.value, &q)
	return q, err == nil && q.valid()
}
