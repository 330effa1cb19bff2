package aiusage

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
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

// format says where the answers of an API have the usage. Programs that speak one API may answer on some paths as another one does, so the
// vocabulary of each API is read in all of them.
type format struct {
	usages []string // paths of objects
	models []string // paths of texts
}

var formats = map[API]format{
	OpenAI:    {usages: []string{"usage", "response.usage"}, models: []string{"model", "response.model"}},
	Anthropic: {usages: []string{"usage", "message.usage"}, models: []string{"model", "message.model"}},
	Gemini:    {usages: []string{"usage", "usageMetadata", "[].usageMetadata"}, models: []string{"model", "modelVersion", "[].modelVersion"}},
}

// The paths that say whether the usage of an event is that of the whole answer.
const (
	pathType         = "type" // message_delta of Anthropic; response.… of OpenAI, which has a usage when it has ended
	pathChoices      = "choices"
	pathFinishReason = "choices.[].finish_reason"
	pathGeminiFinish = "candidates.[].finishReason"
	pathGeminiBlock  = "promptFeedback.blockReason"
)

// Names lists the quantities of the usage of an API.
func Names() []string { return []string{"input", "cached", "cache_write", "output", "reasoning"} }

// Formula counts every token of an API once.
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

// tokens are the members of the usage objects of all APIs. An object that has none of them is no usage. Of several objects in one answer, each overrides the members that it has.
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

	Total count `json:"total_tokens"`
}

// details are the parts of a number of tokens.
type details struct{ cached, reasoning count }

// UnmarshalJSON implements [json.Unmarshaler]. A value that is no object of numbers leaves both 0.
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

// quantities returns the quantities of an answer. input is without cached and cache_write; output
// includes reasoning, which is also a quantity of its own. OpenAI has two names for each number: the APIs of completions and of responses.
func (u *tokens) quantities() Quantities {
	q := map[string]count{}
	switch input := max(u.PromptTokens, u.InputTokens); {
	case u.Prompt+u.ToolPrompt+u.Candidates+u.Thoughts > 0: // Gemini
		input = u.Prompt + u.ToolPrompt
		q["input"], q["cached"] = input-min(input, u.Cached), min(input, u.Cached)
		q["output"], q["reasoning"] = u.Candidates+u.Thoughts, u.Thoughts
	case u.PromptTokens == 0 && u.CacheRead+u.CacheWrite > 0: // Anthropic, whose input is without both
		q["input"], q["cached"], q["cache_write"], q["output"] = u.InputTokens, u.CacheRead, u.CacheWrite, u.OutputTokens
	default:
		cached := min(input, max(u.PromptDetails.cached, u.InputDetails.cached))
		q["input"], q["cached"] = input-cached, cached
		output, reasoning := max(u.CompletionTokens, u.OutputTokens), max(u.CompletionDetails.reasoning, u.OutputDetails.reasoning)
		if input+output+reasoning <= u.Total { // some programs, such as xAI's, leave the reasoning out of the output
			output += reasoning
		}
		q["output"], q["reasoning"] = output, reasoning
	}
	list := Quantities{}
	for name, n := range q {
		list[name] = int64(min(n, maxQuantity))
	}
	return list
}

// isUsage reports whether an object has a number of tokens under a name of an API.
func isUsage(object []byte) bool {
	var members map[string]json.RawMessage
	if json.Unmarshal(object, &members) != nil {
		return false
	}
	for _, name := range []string{"prompt_tokens", "completion_tokens", "input_tokens", "output_tokens", "promptTokenCount", "candidatesTokenCount", "thoughtsTokenCount"} {
		var n count
		if raw := members[name]; len(raw) > 0 && string(raw) != "null" && json.Unmarshal(raw, &n) == nil {
			return true
		}
	}
	return false
}

// Reader reads the usage from an answer that arrives in pieces.
type Reader struct {
	api    API
	path   string // of a JSON value, without an API
	picker *Picker

	mark    int  // how many bytes of a byte order mark were read
	events  bool // the answer has server-sent events
	drop    bool // leave out the event that has only the usage
	line    lineState
	name    []byte // of the field of the current line
	pending []byte // the current event, while it may have to be left out
	tooLong bool   // the current event is longer than MaxBuffered, so it is relayed

	tokens tokens
	usage  Quantities
	value  json.RawMessage // at the path
	model  string
	ends   bool // the last event with a part of the answer was read
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
	return &Reader{api: a, picker: NewPicker(append(append([]string{pathType, pathChoices, pathFinishReason, pathGeminiFinish, pathGeminiBlock}, f.usages...), f.models...)...)}
}

// NewPathReader returns a reader for the value at a path of a JSON answer. Of server-sent events, the last one that has it counts.
func NewPathReader(path string) *Reader { return &Reader{path: path, picker: NewPicker(path)} }

// SetEvents says that the answer has server-sent events. With dropUsage, the reader leaves out the event of a chat completion that has only
// the usage: the client has not asked for it.
func (r *Reader) SetEvents(dropUsage bool) { r.events, r.drop = true, dropUsage }

const byteOrderMark = "\ufeff"

// Pass reads the next piece of the answer, and returns what to relay of it now. The result is valid until the next call.
func (r *Reader) Pass(b []byte) []byte {
	n := 0
	for ; n < len(b) && r.mark < len(byteOrderMark) && b[n] == byteOrderMark[r.mark]; n++ {
		r.mark++
	}
	if n > 0 {
		return append(bytes.Clone(b[:n]), r.Pass(b[n:])...)
	}
	if len(b) > 0 {
		r.mark = len(byteOrderMark)
	}
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
		if r.tooLong {
			relay = append(relay, rest[:n]...)
		} else if r.pending = append(r.pending, rest[:n]...); len(r.pending) > MaxBuffered {
			relay, r.pending, r.tooLong = append(relay, r.pending...), r.pending[:0], true
		}
		if ended != eventGoesOn {
			if ended == eventRelayed {
				relay = append(relay, r.pending...)
			}
			r.pending, r.tooLong = r.pending[:0], false
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
	r.extract() // of an answer that is no stream, or of an event without a blank line behind it
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
			if end = eventRelayed; r.extract() && r.drop {
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

// extract reads the usage and the model from an event, or from the whole answer. It reports whether the event has nothing but the usage.
func (r *Reader) extract() (onlyUsage bool) {
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
	r.noteEnd()
	for _, path := range f.models {
		r.model = cmp.Or(r.picker.Text(path), r.model)
	}
	for _, path := range f.usages {
		u := r.tokens
		if v := r.picker.Get(path); !isUsage(v.Raw) || json.Unmarshal(v.Raw, &u) != nil {
			continue
		}
		r.tokens, r.usage = u, u.quantities()
		onlyUsage = isEmptyArray(r.picker.Get(pathChoices).Raw)
		r.ends = r.ends || onlyUsage
	}
	return onlyUsage
}

// noteEnd notes whether an event is the last one with a part of the answer.
func (r *Reader) noteEnd() {
	kind := r.picker.Text(pathType)
	object, status, _ := strings.Cut(kind, ".")
	switch {
	case kind == "message_delta", object == "response" && slices.Contains([]string{"completed", "incomplete", "failed", "cancelled"}, status),
		object != "response" && (strings.HasSuffix(kind, ".completed") || strings.HasSuffix(kind, ".done")),
		cmp.Or(r.picker.Text(pathFinishReason), r.picker.Text(pathGeminiFinish), r.picker.Text(pathGeminiBlock)) != "":
		r.ends = true
	}
}

// isEmptyArray reports whether a value is an array without items.
func isEmptyArray(raw []byte) bool {
	return len(raw) > 1 && raw[0] == '[' && len(bytes.TrimSpace(raw[1:len(raw)-1])) == 0
}

// Usage returns the usage of the answer and its model. The usage is nil if the answer does not say it. It is not whole if the answer was cut
// before it said the whole usage: the request has then used at least that.
func (r *Reader) Usage() (q Quantities, model string, whole bool) {
	return r.usage, r.model, r.usage != nil && (r.ends || !r.events)
}

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
