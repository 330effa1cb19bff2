package aiusage_test

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/limitkeeper/limitkeeper/internal/aiusage"
)

// chunk is an event of a chat completion.
const chunk = `data: {"id":"c1","object":"chat.completion.chunk","model":"small-2","choices":[{"index":0,"delta":{"content":"a \"usage\":{\"prompt_tokens\":1} \\"}}],"usage":null}` + "\n\n"

const lastChunk = `data: {"id":"c1","model":"small-2","choices":[],"usage":{"prompt_tokens":900,"completion_tokens":120,"total_tokens":1020,"prompt_tokens_details":{"cached_tokens":300},"completion_tokens_details":{"reasoning_tokens":20}}}` + "\n\n"

var long = strings.Repeat("x", 2*aiusage.MaxBuffered)

func TestUsage(t *testing.T) {
	openAI := aiusage.Quantities{"input": 600, "cached": 300, "output": 120, "reasoning": 20}
	for _, test := range []struct {
		name   string
		api    aiusage.API
		events bool
		text   string
		want   aiusage.Quantities
		model  string
	}{
		{"chat", aiusage.OpenAI, false, `{"model": "small-2", "choices": [{"message": {"content": "` + long + ` {\"usage\": 1}"}}],
			"usage": {"prompt_tokens": 900, "completion_tokens": 120, "prompt_tokens_details": {"cached_tokens": 300}, "completion_tokens_details": {"reasoning_tokens": 20}}}`, openAI, "small-2"},
		{"usage of a member", aiusage.OpenAI, false, `{"metadata":{"usage":{"prompt_tokens":1}},"choices":[{"usage":{"prompt_tokens":2}}]}`, nil, ""},
		{"embeddings", aiusage.OpenAI, false, `{"data":[{"embedding":[` + strings.Repeat("0.1,", 50_000) + `0.1]}],"model":"e","usage":{"prompt_tokens":8,"total_tokens":8}}`, aiusage.Quantities{"input": 8}, "e"},
		{"responses", aiusage.OpenAI, false, `{"model":"r","usage":{"input_tokens":5,"input_tokens_details":{"cached_tokens":2},"output_tokens":7,"output_tokens_details":{"reasoning_tokens":3}}}`,
			aiusage.Quantities{"input": 3, "cached": 2, "output": 7, "reasoning": 3}, "r"},
		{"chat, events", aiusage.OpenAI, true, chunk + chunk + lastChunk + "data: [DONE]\n\n", openAI, "small-2"},
		{"chat, events, cut", aiusage.OpenAI, true, chunk + chunk, nil, "small-2"},
		{"responses, events", aiusage.OpenAI, true, "event: response.created\ndata: {\"type\":\"response.created\",\"response\":{\"model\":\"r\",\"usage\":null}}\n\n" +
			"event: response.incomplete\r\ndata: {\"type\":\"response.incomplete\",\r\ndata: \"response\":{\"output\":\"" + long + "\",\"model\":\"r\",\"usage\":{\"input_tokens\":5,\"output_tokens\":7}}}\r\n\r\n",
			aiusage.Quantities{"input": 5, "output": 7}, "r"},
		{"messages", aiusage.Anthropic, false, `{"type":"message","model":"m","usage":{"input_tokens":5,"cache_read_input_tokens":100,"cache_creation_input_tokens":20,"output_tokens":7}}`,
			aiusage.Quantities{"input": 5, "cached": 100, "cache_write": 20, "output": 7}, "m"},
		{"messages, events", aiusage.Anthropic, true, messages + "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n",
			aiusage.Quantities{"input": 5, "cached": 100, "output": 15}, "m"},
		{"messages, cut after the usage", aiusage.Anthropic, true, messages, aiusage.Quantities{"input": 5, "cached": 100, "output": 15}, "m"},
		{"messages, cut before it", aiusage.Anthropic, true, messages[:strings.Index(messages, "event: message_delta")], nil, "m"},
		{"gemini", aiusage.Gemini, false, `{"candidates":[],"usageMetadata":{"promptTokenCount":10,"cachedContentTokenCount":4,"candidatesTokenCount":3,"thoughtsTokenCount":2},"modelVersion":"g"}`,
			aiusage.Quantities{"input": 6, "cached": 4, "output": 5, "reasoning": 2}, "g"},
		{"gemini, array", aiusage.Gemini, false, `[{"usageMetadata":{"promptTokenCount":10,"candidatesTokenCount":1},"modelVersion":"g"},` + "\n" + `{"usageMetadata":{"promptTokenCount":10,"candidatesTokenCount":3}}]`,
			aiusage.Quantities{"input": 10, "output": 3}, "g"},
		{"gemini, events", aiusage.Gemini, true, "data: {\"usageMetadata\":{\"promptTokenCount\":10}}\n\ndata: {\"candidates\":[{\"finishReason\":\"STOP\"}],\"usageMetadata\":{\"promptTokenCount\":10,\"candidatesTokenCount\":3},\"modelVersion\":\"g\"}\n\n",
			aiusage.Quantities{"input": 10, "output": 3}, "g"},
		{"chat, names of both APIs", aiusage.OpenAI, false, `{"usage":{"prompt_tokens":10,"input_tokens":10,"completion_tokens":2.0,"prompt_tokens_details":[]}}`,
			aiusage.Quantities{"input": 10, "output": 2}, ""},
		{"chat, more cached than there is", aiusage.OpenAI, false, `{"usage":{"prompt_tokens":10,"prompt_tokens_details":{"cached_tokens":20}}}`, aiusage.Quantities{"cached": 10}, ""},
		{"chat, events, without a blank line at the end", aiusage.OpenAI, true, chunk + strings.TrimSpace(lastChunk), openAI, "small-2"},
		{"chat, a bad usage after a good one", aiusage.OpenAI, true, lastChunk + "data: {\"usage\":{\"prompt_tokens\":-1}}\n\n", openAI, "small-2"},
		{"chat, a second value", aiusage.OpenAI, false, `{"usage":{"prompt_tokens":10}}{"usage":{"prompt_tokens":1}}`, aiusage.Quantities{"input": 10}, ""},
		{"an empty usage", aiusage.OpenAI, false, `{"model":"m","usage":{}}`, nil, "m"},
		{"the duration of a transcription", aiusage.OpenAI, false, `{"usage":{"type":"duration","seconds":3}}`, nil, ""},
		{"a sum only", aiusage.OpenAI, false, `{"usage":{"total_tokens":700}}`, nil, ""},
		{"the words of OpenAI at Anthropic", aiusage.Anthropic, false, `{"usage":{"prompt_tokens":10,"completion_tokens":2}}`, aiusage.Quantities{"input": 10, "output": 2}, ""},
		{"the words of OpenAI at Gemini", aiusage.Gemini, false, `{"model":"g","usage":{"prompt_tokens":10,"completion_tokens":2}}`, aiusage.Quantities{"input": 10, "output": 2}, "g"},
		{"the words of Anthropic at OpenAI", aiusage.OpenAI, false, `{"usage":{"input_tokens":1,"cache_read_input_tokens":10,"output_tokens":2}}`, aiusage.Quantities{"input": 1, "cached": 10, "output": 2}, ""},
		{"deep in brackets", aiusage.OpenAI, false, `{"x":` + strings.Repeat("[", 9000) + strings.Repeat("]", 9000) + `,"usage":{"prompt_tokens":10}}`, aiusage.Quantities{"input": 10}, ""},
		{"a byte order mark", aiusage.OpenAI, false, "\ufeff" + `{"usage":{"prompt_tokens":10}}`, aiusage.Quantities{"input": 10}, ""},
		{"events, a byte order mark", aiusage.OpenAI, true, "\ufeff" + lastChunk, openAI, "small-2"},
		{"the end before the usage, of OpenRouter", aiusage.OpenAI, true, "data: {\"choices\":[{\"finish_reason\":\"stop\"}]}\n\ndata: {\"choices\":[{\"finish_reason\":null}],\"usage\":{\"prompt_tokens\":10,\"completion_tokens\":2}}\n\ndata: [DONE]\n\n",
			aiusage.Quantities{"input": 10, "output": 2}, ""},
		{"an image", aiusage.OpenAI, true, "data: {\"type\":\"image_generation.completed\",\"usage\":{\"input_tokens\":10,\"output_tokens\":2}}\n\n", aiusage.Quantities{"input": 10, "output": 2}, ""},
		{"a transcription", aiusage.OpenAI, true, "data: {\"type\":\"transcript.text.done\",\"usage\":{\"input_tokens\":10,\"output_tokens\":2}}\n\n", aiusage.Quantities{"input": 10, "output": 2}, ""},
		{"reasoning beside the output, of xAI", aiusage.OpenAI, false, `{"usage":{"prompt_tokens":12,"completion_tokens":1,"total_tokens":399,"completion_tokens_details":{"reasoning_tokens":386}}}`,
			aiusage.Quantities{"input": 12, "output": 387, "reasoning": 386}, ""},
		{"a literal dot", aiusage.OpenAI, false, `{"response.usage":{"prompt_tokens":10}}`, nil, ""},
		{"negative", aiusage.OpenAI, false, `{"usage":{"prompt_tokens":-900}}`, nil, ""},
		{"no JSON", aiusage.OpenAI, false, `]}"\`, nil, ""},
	} {
		for _, size := range []int{1, 2, 7, 64, 1 << 20} {
			t.Run(fmt.Sprintf("%s in pieces of %d", test.name, size), func(t *testing.T) {
				r := aiusage.NewReader(test.api)
				if test.events {
					r.SetEvents(false)
				}
				var relayed strings.Builder
				for at := 0; at < len(test.text); at += size {
					relayed.Write(r.Pass([]byte(test.text[at:min(len(test.text), at+size)])))
				}
				relayed.Write(r.Rest())
				q, model, known := r.Usage()
				for name, n := range q {
					if n == 0 {
						delete(q, name)
					}
				}
				if known != (test.want != nil) || known && !reflect.DeepEqual(q, test.want) || model != test.model {
					t.Errorf("got %v of %q, known: %t; want %v of %q", q, model, known, test.want, test.model)
				}
				if relayed.String() != test.text {
					t.Errorf("got another text relayed: %d bytes, want %d", relayed.Len(), len(test.text))
				}
			})
		}
	}
}

const messages = "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"model\":\"m\",\"usage\":{\"input_tokens\":5,\"cache_read_input_tokens\":100,\"output_tokens\":1}}}\n\n" +
	"event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"delta\":{\"text\":\"hello\"}}\n\n" +
	"event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\"},\"usage\":{\"output_tokens\":15}}\n\n"

// The event that a client has not asked for is left out, and nothing else.
func TestDropUsage(t *testing.T) {
	filtered := `data: {"choices":[],"prompt_filter_results":[]}` + "\n\n"
	huge := `data: {"choices":[{"delta":{"content":"` + long + `"}}]}` + "\n\n"
	given := filtered + chunk + huge + lastChunk + "data: [DONE]\n\n"
	for _, size := range []int{1, 5, 1000, 1 << 20} {
		r := aiusage.NewReader(aiusage.OpenAI)
		r.SetEvents(true)
		var relayed strings.Builder
		for at := 0; at < len(given); at += size {
			relayed.Write(r.Pass([]byte(given[at:min(len(given), at+size)])))
		}
		relayed.Write(r.Rest())
		if want := filtered + chunk + huge + "data: [DONE]\n\n"; relayed.String() != want {
			t.Errorf("pieces of %d: got %d bytes, want %d without the last chunk", size, relayed.Len(), len(want))
		}
		if q, _, known := r.Usage(); !known || q["output"] != 120 {
			t.Errorf("pieces of %d: got %v, known: %t", size, q, known)
		}
	}
}

func TestValueAtPath(t *testing.T) {
	for _, test := range []struct {
		path, text string
		want       aiusage.Quantities
	}{
		{"usage.units", `{"a":{"units":1},"usage":{"units": 12 }}`, aiusage.Quantities{"value": 12}},
		{"usage", `{"usage":{"pages":3,"images":2}}`, aiusage.Quantities{"pages": 3, "images": 2}},
		{"usage", `{"usage":"12"}`, nil},
		{"usage", `{"usage":1.5}`, nil},
		{"usage", `{"usage":-1}`, nil},
		{"usage", `{}`, nil},
	} {
		r := aiusage.NewPathReader(test.path)
		r.Pass([]byte(test.text))
		r.Rest()
		if q, known := r.Value(); known != (test.want != nil) || known && !reflect.DeepEqual(q, test.want) {
			t.Errorf("%s in %s: got %v, known: %t; want %v", test.path, test.text, q, known, test.want)
		}
	}
}

func TestPickerOffsets(t *testing.T) {
	text := `{ "model" : "m" , "max_tokens":  4096,"stream":true}`
	p := aiusage.NewPicker("model", "max_tokens", "stream", "none")
	for i := range len(text) {
		p.Write([]byte(text[i : i+1]))
	}
	for path, want := range map[string]string{"model": `"m"`, "max_tokens": "4096", "stream": "true"} {
		v := p.Get(path)
		if string(v.Raw) != want || text[v.From:v.To] != want {
			t.Errorf("%s: got %q at %d to %d, which is %q; want %s", path, v.Raw, v.From, v.To, text[v.From:v.To], want)
		}
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
	if p.Get("none").Seen() {
		t.Error("none: got seen")
	}
}

// A picker finds each spelling of a name, its repetitions, and names that other readers take for it.
func TestPickerNames(t *testing.T) {
	for _, test := range []struct {
		text, raw string
		count     int
		similar   string
	}{
		{`{"a":{"max_tokens":7}}`, "7", 1, ""},
		{`{"a":{"max_token\u0073":7}}`, "7", 1, ""},
		{`{"a":{"max_tokens":7,"max_token\u0073":8}}`, "8", 2, ""},
		{`{"a":{"max_tokens":7,"Max_Tokens":8}}`, "7", 1, "Max_Tokens"},
		{`{"a":{"maxTokens":8}}`, "", 0, "maxTokens"},
		{`{"a":{"max_to` + "\u212a" + `ens":8}}`, "", 0, "max_to\u212aens"},
		{`{"a.max_tokens":7,"max_tokens":8,"b":{"a":{"max_tokens":9}},"c":["a",{"max_tokens":10}]}`, "", 0, ""},
		{`{"a":{"max_tokens":"` + long + `"}}`, "", 1, ""},
		{`{"a":{"` + long + `":1,"max_tokens":[1, {"b":"\""}]}}`, `[1, {"b":"\""}]`, 1, ""},
	} {
		for _, size := range []int{1, 3, 1 << 20} {
			p := aiusage.NewPicker("a.max_tokens")
			p.NoteSimilar()
			for at := 0; at < len(test.text); at += size {
				p.Write([]byte(test.text[at:min(len(test.text), at+size)]))
			}
			err := p.Close()
			if v := p.Get("a.max_tokens"); err != nil || string(v.Raw) != test.raw || v.Count != test.count || v.Similar != test.similar {
				t.Errorf("%.60s in pieces of %d: got %.40q, %d times, similar %q, %v; want %q, %d, %q", test.text, size, v.Raw, v.Count, v.Similar, err, test.raw, test.count, test.similar)
			}
		}
	}
}

// A picker holds little, however deep or long a text is.
func TestPickerBounds(t *testing.T) {
	p := aiusage.NewPicker("a")
	allocated := testing.AllocsPerRun(1, func() {
		p.Reset()
		for range 1000 {
			p.Write([]byte(strings.Repeat("[", 10_000)))
		}
	})
	if err := p.Close(); err == nil || !strings.Contains(err.Error(), "nested") || allocated > 2000 {
		t.Errorf("ten million brackets: got %v and %v allocations, want an error about nesting", err, allocated)
	}
}

// A picker accepts what encoding/json accepts.
func FuzzPicker(f *testing.F) {
	for _, text := range []string{`{"a":1}`, `[1,-0.5e+3,{"a":[]}]`, `"\u00e9\n"`, `{"a":1,}`, `[01]`, `{"a" 1}`, `tru`, `-`, `{}{}`, "\"\n\"", `{"a":{"b":null},"a":[{}]}`} {
		f.Add([]byte(text), 3)
	}
	f.Fuzz(func(t *testing.T, text []byte, size int) {
		p := aiusage.NewPicker("a", "a.b", "[].a")
		for at, size := 0, max(1, size%16); at < len(text); at += size {
			p.Write(text[at:min(len(text), at+size)])
		}
		if err := p.Close(); (err == nil) != json.Valid(text) && (err == nil || !strings.Contains(err.Error(), "nested")) {
			t.Errorf("%q: got %v, valid: %t", text, err, json.Valid(text))
		}
	})
}

// Many members of the object around wanted members cost as much as many members elsewhere.
func BenchmarkPickerManyNames(b *testing.B) {
	for _, body := range []struct{ name, text string }{
		{"wanted object", "{" + strings.Repeat(`"a":0,`, 10_000) + `"b":0}`}, {"another object", `{"x":{` + strings.Repeat(`"a":0,`, 10_000) + `"b":0}}`},
	} {
		b.Run(body.name, func(b *testing.B) {
			b.SetBytes(int64(len(body.text)))
			for b.Loop() {
				p := aiusage.NewPicker("model", "stream", "stream_options.include_usage", "max_tokens", "messages")
				p.NoteSimilar()
				if p.Write([]byte(body.text)); p.Close() != nil {
					b.Fatal("want it valid")
				}
			}
		})
	}
}
