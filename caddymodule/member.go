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

	memberMaxTokens    = "max_tokens"
	memberOutputTokens = "max_output_tokens"
)

// outputMembers are the names of one bound in the APIs of OpenAI: of completions, of newer chat completions, and of responses.
var outputMembers = []string{memberMaxTokens, "max_completion_tokens", memberOutputTokens}

// promptMembers are the members of chat completions and of completions.
var promptMembers = []string{"messages", "prompt"}

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
		names = append(names, memberStream, memberOptions, memberUsage, memberInput)
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

// clamped returns the cost that the option clamp is about, nil without the option.
func (g *Gateway) clamped() *costOption {
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
	known, err := svc.Recognizes(ctx, account, q)
	if err != nil || !known {
		return nil, err
	}
	if g.Charge.callsModel() && (r.Header.Get("Upgrade") != "" || r.Method == http.MethodConnect) {
		return nil, badBody("upgrade", "The connection cannot be upgraded: what passes on it cannot be charged")
	}
	b, err := readBody(r, q.Secret+q.External, g.read...)
	if err != nil {
		return nil, err
	}
	if q.Model = g.model(r, b); (&core.PricedRequest{Model: q.Model}).Check() != nil {
		q.Model = ""
	}
	return b, nil
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

// choices returns how many answers a request wants.
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
	for _, name := range g.namesOf(c) {
		asked, has, err := b.wholeNumber(name, most)
		if err != nil {
			return 0, false, err
		}
		if has {
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
		if has = has || given; given && asked > n {
			b.set(name, strconv.FormatInt(n, 10))
		}
	}
	if has {
		return
	}
	name := c.member
	if len(names) > 1 {
		name = outputMember(r, b, c.member)
	}
	if name != "" {
		b.set(name, strconv.FormatInt(n, 10))
	}
}

// outputMember returns the member that bounds the output of a request without such a member, "" for a request without output, such as
// embeddings.
func outputMember(r *http.Request, b *requestBody, configured string) string {
	switch base := strings.ToLower(path.Base(r.URL.Path)); {
	case slices.Contains([]string{"embeddings", "moderations", "speech"}, base):
		return ""
	case !b.isCompletion(r):
		return memberOutputTokens
	case configured == memberOutputTokens:
		return memberMaxTokens
	}
	return configured
}

// isCompletion reports whether a request to an API of OpenAI is a completion or a chat completion, and not a response.
func (b *requestBody) isCompletion(r *http.Request) bool {
	if strings.EqualFold(path.Base(r.URL.Path), "responses") {
		return false
	}
	return b.get(promptMembers[0]).Seen() || b.get(promptMembers[1]).Seen() || !b.get(memberInput).Seen()
}

// askUsage makes a stream of OpenAI say its usage: a completion says it only if the request asks. added is false if the client has asked.
func (b *requestBody) askUsage(r *http.Request) (added bool, err error) {
	streams, err := b.isTrue(memberStream)
	if err != nil || !streams || !b.isCompletion(r) {
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
