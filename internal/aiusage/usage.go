package aiusage

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"strconv"
)

// Quantities are numbers of units by their names: input, cached, cache_write, output and reasoning of a model.
type Quantities map[string]int64

// maxQuantity bounds each quantity.
const maxQuantity = 1_000_000_000

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
	final  string   // the type of the event that has the whole usage; "" if each event with a usage has it
}

var formats = map[API]format{
	OpenAI:    {usages: []string{"usage", "response.usage"}, models: []string{"model", "response.model"}},
	Anthropic: {usages: []string{"usage", "message.usage"}, models: []string{"model", "message.model"}, final: "message_delta"},
	Gemini:    {usages: []string{"usageMetadata", "[].usageMetadata"}, models: []string{"modelVersion", "[].modelVersion"}},
}

// Formula returns the members of the formula that counts every token of an API once.
const Formula = "input + cached + cache_write + output"

// count is a number of tokens. Some programs write whole numbers as 10.0.
type count int64

// UnmarshalJSON implements [json.Unmarshaler].
func (c *count) UnmarshalJSON(b []byte) error {
	f, err := strconv.ParseFloat(string(b), 64)
	if string(b) == "null" {
		return nil
	}
	if err != nil || f != math.Trunc(f) || f < 0 || f > maxQuantity {
		return errCount
	}
	*c = count(f)
	return nil
}

var errCount = fmt.Errorf("want a whole number from 0 to %d", maxQuantity)

// tokens are the members of the usage objects of all APIs. Of several objects in one answer, each overrides the members that it has.
type tokens struct {
	PromptTokens     count `json:"prompt_tokens"`
	CompletionTokens count `json:"completion_tokens"`
	InputTokens      count `json:"input_tokens"`
	OutputTokens     count `json:"output_tokens"`

	PromptDetails     details `json:"prompt_tokens_details"`
	InputDetails      details `json:"input_tokens_details"`
	CompletionDetails details `json:"completion_tokens_details"`
	OutputDetails     details `json:"output_tokens_details"`

	CacheRead  count `json:"cache_read_input_tokens"`
	CacheWrite count `json:"cache_creation_input_tokens"`

	Prompt     count `json:"promptTokenCount"`
	ToolPrompt count `json:"toolUsePromptTokenCount"`
	Cached     count `json:"cachedContentTokenCount"`
	Candidates count `json:"candidatesTokenCount"`
	Thoughts   count `json:"thoughtsTokenCount"`
}

// details are the parts of a number of tokens.
type details struct{ cached, reasoning count }

// UnmarshalJSON implements [json.Unmarshaler]. A value that is no object of numbers says nothing.
func (d *details) UnmarshalJSON(b []byte) error {
	var u struct {
		Cached    count `json:"cached_tokens"`
		Reasoning count `json:"reasoning_tokens"`
	}
	if json.Unmarshal(b, &u) == nil {
		*d = details{u.Cached, u.Reasoning}
	}
	return nil
}

// quantities returns the quantities of an answer of an API. input is without what came from a cache and what was written to one; output
// has the reasoning, which is also told apart. OpenAI has two names for each number: the APIs of completions and of responses.
func (u *tokens) quantities(a API) Quantities {
	q := map[string]count{}
	switch a {
	case OpenAI:
		input := max(u.PromptTokens, u.InputTokens)
		cached := min(input, max(u.PromptDetails.cached, u.InputDetails.cached))
		q["input"], q["cached"] = input-cached, cached
		q["output"], q["reasoning"] = max(u.CompletionTokens, u.OutputTokens), max(u.CompletionDetails.reasoning, u.OutputDetails.reasoning)
	case Anthropic:
		q["input"], q["cached"], q["cache_write"], q["output"] = u.InputTokens, u.CacheRead, u.CacheWrite, u.OutputTokens
	case Gemini:
		input := u.Prompt + u.ToolPrompt
		q["input"], q["cached"] = input-min(input, u.Cached), min(input, u.Cached)
		q["output"], q["reasoning"] = u.Candidates+u.Thoughts, u.Thoughts
	}
	list := Quantities{}
	for name, n := range q {
		list[name] = int64(min(n, maxQuantity))
	}
	return list
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
	final  bool // usage is that of the whole answer
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
	_ = r.picker.Close()
	r.note() // of an answer that is no stream, or of an event without a blank line behind it
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
	if !r.picker.Complete() {
		return false
	}
	if r.path != "" {
		if v := r.picker.Get(r.path); v.Seen() && string(v.Raw) != "null" {
			r.value = bytes.Clone(v.Raw)
		}
		return false
	}
	f := formats[r.api]
	for _, path := range f.models {
		r.model = cmp.Or(r.picker.Text(path), r.model)
	}
	for _, path := range f.usages {
		u := r.tokens
		if v := r.picker.Get(path); len(v.Raw) == 0 || v.Raw[0] != '{' || json.Unmarshal(v.Raw, &u) != nil {
			continue
		}
		r.tokens, r.usage = u, u.quantities(r.api)
		r.final = r.final || !r.events || f.final == "" || r.picker.Text("type") == f.final
		onlyUsage = string(r.picker.Get("choices").Raw) == "[]"
	}
	return onlyUsage
}

// Usage returns the usage of the answer and its model. The usage is nil if the answer does not say it. It is not whole if the answer was cut
// before it said the whole usage: the request has then used at least that.
func (r *Reader) Usage() (q Quantities, model string, whole bool) { return r.usage, r.model, r.final }

// Value returns the whole number or the object of whole numbers at the path, as quantities: a number has the name value.
func (r *Reader) Value() (q Quantities, known bool) {
	if len(r.value) == 0 {
		return nil, false
	}
	if r.value[0] != '{' {
		q = Quantities{}
		var n count
		err := json.Unmarshal(r.value, &n)
		q["value"] = int64(n)
		return q, err == nil
	}
	var counts map[string]count
	err := json.Unmarshal(r.value, &counts)
	q = Quantities{}
	for name, n := range counts {
		q[name] = int64(n)
	}
	return q, err == nil
}
