package caddymodule

import (
	"context"
	"encoding/json"
	"net/http"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/service"
	"github.com/limitkeeper/limitkeeper/internal/aiusage"
)

// The members of requests that the gateway reads.
const (
	memberModel   = "model"
	memberStream  = "stream"
	memberOptions = "stream_options"
	memberUsage   = "stream_options.include_usage"
	memberMethod  = "method" // of JSON-RPC
	memberTool    = "params.name"
	memberInput   = "input"
	memberPrompts = "prompt" + itemsOf
	memberEmbeds  = "prompt_embeds" + itemsOf

	memberMaxTokens    = "max_tokens"
	memberMaxNew       = "max_completion_tokens"
	memberOutputTokens = "max_output_tokens"
	memberPredict      = "n_predict" // of llama.cpp, which takes it before max_tokens
)

// outputMembers are the names of one bound in the APIs of OpenAI: of completions, of newer chat completions, and of responses.
var outputMembers = []string{memberMaxTokens, memberMaxNew, memberOutputTokens}

// promptMembers are the members of chat completions, of completions and of responses that have the prompt.
var promptMembers = []string{"messages", "prompt", memberInput}

// choiceMembers are the members that say how many answers a request wants, by the source of the usage: each answer may have as many
// tokens as the request allows.
var choiceMembers = map[string][]string{
	string(aiusage.OpenAI): {"n", "best_of"},
	string(aiusage.Gemini): {"generationConfig.candidateCount"},
}

// maxChoices bounds the answers that a request wants.
const maxChoices = 1000

// from returns the source of the usage, "" without the option charge.
func (g *Gateway) from() string {
	if g.Charge == nil {
		return ""
	}
	return g.Charge.From
}

// members returns the members of requests that the gateway reads, none if it does not read bodies.
func (g *Gateway) members() (names []string) {
	costs := slices.ContainsFunc(g.costs, func(c costOption) bool { return c.member != "" })
	if !costs && !g.Charge.callsModel() && (g.from() != fromJSON || g.Charge.Of != chargePrices) {
		return nil
	}
	names = append(names, memberModel)
	switch g.from() {
	case string(aiusage.OpenAI):
		names = append(names, memberStream, memberOptions, memberUsage, memberPrompts, memberEmbeds, memberPredict)
		names = append(names, promptMembers...)
	case fromMCP:
		names = append(names, memberMethod, memberTool)
	}
	for i := range g.costs {
		if c := &g.costs[i]; c.member != "" {
			names = append(names, g.namesOf(c)...)
			names = append(names, choiceMembers[g.from()]...)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// namesOf returns the names of the member from which a cost is read.
func (g *Gateway) namesOf(c *costOption) []string {
	if g.from() == string(aiusage.OpenAI) && slices.Contains(outputMembers, c.member) {
		return outputMembers
	}
	return []string{c.member}
}

// clampedCost returns the cost whose member the option clamp lowers, nil without the option.
func (g *Gateway) clampedCost() *costOption {
	for i := range g.costs {
		if c := &g.costs[i]; g.Clamp != "" && c.member == g.Clamp {
			return c
		}
	}
	return nil
}

// readBody reads the body of a request, if the gateway reads bodies and recognizes the caller. It sets the model of the request.
func (g *Gateway) readBody(ctx context.Context, svc *service.Service, account string, r *http.Request, q *service.Request) (*requestBody, error) {
	if len(g.read) == 0 {
		return nil, nil
	}
	caller, err := svc.Caller(ctx, account, q)
	if err != nil || caller == "" {
		return nil, err
	}
	if strings.EqualFold(r.Header.Get("Upgrade"), "h2c") { // some clients offer it with each request
		r.Header.Del("Upgrade")
	}
	if g.Charge.callsModel() && (r.Header.Get("Upgrade") != "" || r.Method == http.MethodConnect || strings.Contains(strings.ToLower(r.URL.Path), "/realtime/")) {
		return nil, badBody("upgrade", "The connection cannot be upgraded: what passes on it cannot be charged")
	}
	b, err := readBody(r, caller, g.read...)
	switch {
	case err != nil:
		return b, err
	case b != nil && !b.isObject && g.from() == fromMCP:
		return b, badBody("body", "The body must be a JSON object: the gateway charges by its members")
	}
	if q.Model = g.model(r, b); (&core.PricedRequest{Model: q.Model}).Check() != nil {
		q.Model = ""
	}
	if b != nil {
		b.api, err = g.textAPI(r, b)
	}
	return b, err
}

// model returns the model of a request, or the tool that it calls on an MCP server; "" for none.
func (g *Gateway) model(r *http.Request, b *requestBody) string {
	switch g.from() {
	case fromMCP:
		if b.text(memberMethod) != "tools/call" {
			return ""
		}
		return b.text(memberTool)
	case string(aiusage.Gemini): // …/models/gemini-2.5-pro:generateContent
		name, _, _ := strings.Cut(path.Base(r.URL.Path), ":")
		return name
	}
	return b.text(memberModel)
}

// textAPI is an API of OpenAI whose requests bound the text that they get.
type textAPI uint8

const (
	otherAPI textAPI = iota // without such a text, or without OpenAI
	chatAPI
	completionAPI
	responseAPI
)

// textBounds are the members that bound the text.
var textBounds = map[textAPI][]string{chatAPI: {memberMaxTokens, memberMaxNew}, completionAPI: {memberMaxTokens}, responseAPI: {memberOutputTokens}}

// bounds returns the members that bound the text that a request gets, nil if it gets none.
func (b *requestBody) bounds() []string {
	if b == nil {
		return nil
	}
	return textBounds[b.api]
}

// textless are the last names of the paths of other APIs.
var textless = []string{"embeddings", "moderations", "speech", "generations", "edits", "variations", "transcriptions", "translations", "batches", "files", "threads", "runs",
	"conversations", "vector_stores", "search", "videos", "remix", "input_tokens", "compact", "tokenize"}

// textAPI returns the API of a request: by the end of its path or, on a path of the upstream's own, by the prompt.
func (g *Gateway) textAPI(r *http.Request, b *requestBody) (textAPI, error) {
	if g.from() != string(aiusage.OpenAI) || b == nil || !b.isObject {
		return otherAPI, nil
	}
	p := strings.ToLower(r.URL.Path)
	last, before := path.Base(p), path.Base(path.Dir(strings.TrimRight(p, "/")))
	has := func(i int) bool { return b.get(promptMembers[i]).Seen() }
	switch {
	case last == "completions" && (before == "chat" || has(0) && !has(1) && !b.get("prompt_embeds").Seen()):
		return chatAPI, nil
	case last == "completions":
		return completionAPI, nil
	case last == "responses":
		return responseAPI, nil
	case slices.Contains(textless, last):
		return otherAPI, nil
	}
	api := otherAPI
	for i, of := range []textAPI{chatAPI, completionAPI, responseAPI} {
		switch {
		case !has(i):
		case api != otherAPI:
			return api, badBody(promptMembers[i], "The body must have only one of the members %s", strings.Join(promptMembers, ", "))
		default:
			api = of
		}
	}
	return api, nil
}

// choices returns how many answers a request wants: for each of its prompts, if there are several.
func (g *Gateway) choices(b *requestBody) (n int64, err error) {
	n = 1
	for _, name := range choiceMembers[g.from()] {
		wanted, given, err := b.wholeNumber(name, maxChoices)
		if err != nil {
			return 0, err
		}
		if given {
			n = max(n, wanted)
		}
	}
	if g.from() != string(aiusage.OpenAI) {
		return n, nil
	}
	prompts := b.get(memberEmbeds).Count
	if items := b.get(memberPrompts); len(items.Raw) == 0 || items.Raw[0] == '"' || items.Raw[0] == '[' { // not the tokens of one prompt, which are short
		prompts += items.Count
	}
	if n *= max(1, int64(prompts)); n > maxChoices {
		return 0, badBody("prompt", "The request must want at most %d answers", maxChoices)
	}
	return n, nil
}

// costIn returns the cost that the members of a request say: the largest of them, for each answer that the request wants.
func (g *Gateway) costIn(b *requestBody, c *costOption) (n int64, given bool, err error) {
	if b == nil && g.Charge.callsModel() {
		return 0, false, nil
	}
	most := int64(core.MaxMeterCost)
	if c.meter == core.MeterRequests {
		most = core.MaxCost
	}
	bounds := b.bounds()
	if bounds != nil && b.get(memberPredict).Seen() {
		return 0, false, badBody(memberPredict, "The member n_predict bounds the same as %s: send that", bounds[0])
	}
	for _, name := range g.namesOf(c) {
		asked, has, err := b.wholeNumber(name, most)
		switch {
		case err != nil:
			return 0, false, err
		case !has:
		case bounds != nil && slices.Contains(outputMembers, name) && !slices.Contains(bounds, name):
			return 0, false, badBody(name, "The member %s is of another API: send %s", name, bounds[0])
		case asked > 0 || !g.Charge.callsModel(): // some models take 0 for no bound
			n, given = max(n, asked), true
		}
	}
	if !given {
		n = c.n
	}
	choices, err := g.choices(b)
	if err == nil && n*choices > most {
		err = badBody(c.member, "The member %s must be at most %d for %d answers", c.member, most/choices, choices)
	}
	return n * choices, true, err
}

// lower sets the members that bound a cost to at most n. If the request has none, it gets one.
func (g *Gateway) lower(r *http.Request, b *requestBody, c *costOption, n int64) {
	names, has := g.namesOf(c), false
	for _, name := range names {
		asked, given, _ := b.wholeNumber(name, core.MaxMeterCost)
		if has = has || given; given && (asked > n || asked == 0) {
			b.set(name, strconv.FormatInt(n, 10))
		}
	}
	if has {
		return
	}
	name := c.member
	if len(names) > 1 {
		bounds := b.bounds()
		if bounds == nil {
			return
		}
		if !slices.Contains(bounds, name) {
			name = bounds[0]
		}
	} else if last := strings.ToLower(path.Base(r.URL.Path)); g.Charge.callsModel() && (strings.HasSuffix(last, "count_tokens") || strings.HasSuffix(last, ":counttokens")) {
		return // it makes no text
	}
	b.set(name, strconv.FormatInt(n, 10))
}

// askUsage makes a stream of OpenAI say its usage: a completion says it only if the request asks. added is false if the client has asked.
func (b *requestBody) askUsage() (added bool, err error) {
	streams, err := b.isTrue(memberStream)
	if err != nil || !streams || b.api != chatAPI && b.api != completionAPI {
		return false, err
	}
	options := map[string]json.RawMessage{}
	if v := b.get(memberOptions); v.Seen() && json.Unmarshal(v.Raw, &options) != nil {
		return false, badBody(memberOptions, "The member %s must be an object", memberOptions)
	}
	if asked, err := b.isTrue(memberUsage); asked || err != nil {
		return false, err
	}
	if options == nil { // null
		options = map[string]json.RawMessage{}
	}
	options["include_usage"] = json.RawMessage("true")
	text, err := json.Marshal(options)
	b.set(memberOptions, string(text))
	return true, err
}
