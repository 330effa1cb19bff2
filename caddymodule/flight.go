package caddymodule

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/secrets"
	"github.com/limitkeeper/limitkeeper/core/service"
	"github.com/limitkeeper/limitkeeper/internal/aiusage"
)

// flight is a request with an open hold, from the decision until its answer has ended. Then the hold is settled or released.
type flight struct {
	g       *Gateway
	service *service.Service
	account string
	hold    string
	model   string // of the request

	status   int
	reader   *aiusage.Reader // of the answer; nil if its body says nothing
	asked    sync.Mutex      // guards addedUsage: the body of the request may be read beside the answer
	addUsage bool            // the gateway has asked for the usage of a stream, and the client has not
}

// peekFor reads the beginning of the body of a request, if the gateway reads bodies and recognizes the caller. It sets the model.
func (g *Gateway) peekFor(ctx context.Context, svc *service.Service, account string, r *http.Request, q *service.Request) (*jsonBody, error) {
	if !g.peeks() {
		return nil, nil
	}
	known, err := svc.Recognizes(ctx, account, q)
	if err != nil || !known {
		return nil, err
	}
	b, err := g.peek(r)
	if err != nil {
		return nil, core.BadRequest("body", "Body cannot be read")
	}
	q.Model = b.model()
	if (&core.PricedRequest{Model: q.Model}).Check() != nil {
		q.Model = ""
	}
	return b, nil
}

// askHold makes a request take a hold. What is charged in the end must have something left.
func (g *Gateway) askHold(q *service.Request, body *jsonBody) {
	q.InFlight = holdTime
	if !g.holds() {
		return
	}
	q.HoldFor = holdTime
	if g.OnUnknown == unknownRelease {
		q.OnExpiry = core.ReleaseHeld
	}
	if c := g.Charge; c != nil && c.Of != chargePrices {
		for _, m := range q.Costs {
			if m.Meter == c.Of {
				return
			}
		}
		if c.Of == core.MeterRequests && !q.CostByPrice {
			return
		}
		q.Later = append(q.Later, c.Of)
	}
}

// maxClamps bounds how often a clamped request is decided again, because other requests have taken the rest of the limit meanwhile.
const maxClamps = 5

// validateClamped decides a request whose cost on one meter is lowered to what its limits have left.
func (g *Gateway) validateClamped(ctx context.Context, svc *service.Service, account string, q service.Request, v *requestState) error {
	c, asked := g.clamped(), q.Cost
	at := -1 // in q.Costs
	for i, m := range q.Costs {
		if m.Meter == c.meter {
			at, asked = i, m.Cost
		}
	}
	for try := 0; ; try++ {
		limits, err := svc.Look(ctx, account, q)
		if err != nil {
			return err
		}
		n := asked
		for _, l := range limits {
			if l.Limit.Meter == c.meter && !l.Limit.Unlimited() && l.Limit.OnExceed == core.DenyExceed {
				n = min(n, max(1, l.Limit.Remaining(l.Used)))
			}
		}
		if at >= 0 {
			q.Costs = append([]core.MeterCost(nil), q.Costs...)
			q.Costs[at].Cost = n
		} else {
			q.Cost = n
		}
		if v.decision, err = svc.Validate(ctx, account, q); err != nil {
			return err
		}
		if v.decision.Outcome == service.Denied && n > 1 && v.decision.Limit.Meter == c.meter && try < maxClamps {
			continue
		}
		v.clamped = n
		return nil
	}
}

// next calls the next handler. It ends the hold of the request afterwards, if it has one.
func (g *Gateway) next(w *headerWriter, r *http.Request, next caddyhttp.Handler, v *requestState) (err error) {
	f := g.newFlight(r, v)
	if f == nil {
		return next.ServeHTTP(w, r)
	}
	w.flight = f
	metrics.inFlight.Inc()
	ctx := context.WithoutCancel(r.Context())
	landed := f.extend(ctx)
	failed := true // by a panic, such as that of an answer that was cut
	defer func() {
		landed()
		metrics.inFlight.Dec()
		f.end(ctx, w, failed || err != nil || r.Context().Err() != nil, err)
	}()
	err = next.ServeHTTP(w, r)
	failed = false
	return err
}

// newFlight returns the flight of a request, nil without a hold. It prepares the request so that its answer says the usage.
func (g *Gateway) newFlight(r *http.Request, v *requestState) *flight {
	svc, err := g.app.service()
	if err != nil || v.decision.HoldID == "" || v.decision.Repeated {
		return nil
	}
	f := &flight{g: g, service: svc, account: v.decision.Account, hold: v.decision.HoldID, model: v.body.model()}
	if g.Charge.reads() {
		r.Header.Set("Accept-Encoding", "identity")
	}
	if v.body != nil {
		f.editRequest(r, v)
	}
	return f
}

// editRequest lowers the member clamp, and asks for the usage of a stream of OpenAI.
func (f *flight) editRequest(r *http.Request, v *requestState) {
	var now []member
	if v.clamped >= 0 {
		now = append(now, member{f.g.Clamp, strconv.FormatInt(v.clamped, 10)})
	}
	asks := f.g.Charge != nil && f.g.Charge.From == string(aiusage.OpenAI)
	atEnd := func() []member {
		if !asks || !v.body.is(memberStream) {
			return nil
		}
		options, has := withUsage(v.body.picker.Get(memberOptions).Raw)
		if has || !chatPath(r) {
			return nil
		}
		f.asked.Lock()
		defer f.asked.Unlock()
		f.addUsage = true
		return []member{{memberOptions, options}}
	}
	if len(now) > 0 || asks {
		v.body.edit(r, now, atEnd)
	}
}

// chatPath reports whether streams of an endpoint say their usage only if the request asks for it: chat completions and completions.
func chatPath(r *http.Request) bool {
	return strings.HasSuffix(strings.TrimSuffix(r.URL.Path, "/"), "/completions")
}

// withUsage returns the member stream_options with include_usage. has is true if the client has set include_usage itself.
func withUsage(raw []byte) (options string, has bool) {
	all := map[string]json.RawMessage{}
	_ = json.Unmarshal(raw, &all) // null, or another value than an object, is replaced
	if string(all["include_usage"]) == "true" {
		return "", true
	}
	if all == nil {
		all = map[string]json.RawMessage{}
	}
	all["include_usage"] = json.RawMessage("true")
	text, _ := json.Marshal(all)
	return string(text), false
}

// begin notes the status of the answer, and how its body says the usage. A nil flight does nothing.
func (f *flight) begin(status int, h http.Header) {
	if f == nil || f.status != 0 {
		return
	}
	f.status = status
	if !f.g.Charge.reads() || status >= http.StatusMultipleChoices {
		return
	}
	kind, _, _ := mime.ParseMediaType(h.Get("Content-Type"))
	if encoding := h.Get("Content-Encoding"); encoding != "" && encoding != "identity" {
		return
	}
	isEvents := kind == "text/event-stream"
	if !isEvents && kind != "application/json" && !strings.HasSuffix(kind, "+json") {
		return
	}
	if f.g.Charge.From == fromJSON {
		f.reader = aiusage.NewPathReader(f.g.Charge.Name)
	} else {
		f.reader = aiusage.NewReader(aiusage.API(f.g.Charge.From))
	}
	if isEvents {
		f.asked.Lock()
		defer f.asked.Unlock()
		f.reader.Events(f.addUsage)
	}
}

// write relays a piece of the answer.
func (f *flight) write(w io.Writer, h http.Header, p []byte) (int, error) {
	f.begin(http.StatusOK, h)
	if f.reader == nil {
		return w.Write(p)
	}
	if relay := f.reader.Pass(p); len(relay) > 0 {
		if _, err := w.Write(relay); err != nil {
			return 0, err
		}
	}
	return len(p), nil
}

// extend keeps the hold open until the returned function is called.
func (f *flight) extend(ctx context.Context) (landed func()) {
	var mu sync.Mutex
	var timer *time.Timer
	var ended bool
	var again func()
	again = func() {
		_ = f.service.ExtendHold(ctx, f.account, f.hold, holdTime) // the next attempt comes before the hold ends
		mu.Lock()
		defer mu.Unlock()
		if !ended {
			timer = time.AfterFunc(holdTime/4, again)
		}
	}
	timer = time.AfterFunc(holdTime/4, again)
	return func() {
		mu.Lock()
		defer mu.Unlock()
		ended = true
		timer.Stop()
	}
}

// end settles or releases the hold. cut says that the answer may not be complete, and err is the error of the next handler.
func (f *flight) end(ctx context.Context, w *headerWriter, cut bool, err error) {
	if f.reader != nil {
		if rest := f.reader.Rest(); len(rest) > 0 {
			_, _ = w.ResponseWriterWrapper.Write(rest)
		}
	}
	if failed, ok := errors.AsType[caddyhttp.HandlerError](err); ok && f.status == 0 {
		f.status = failed.StatusCode
	}
	if f.status == 0 && !cut {
		f.status = http.StatusOK // the handler has written nothing
	}
	release, final := f.outcome(w.Header(), cut)
	done, err := f.settle(ctx, release, final)
	if e, ok := errors.AsType[*core.Error](err); ok && e.Code == core.CodeValidation { // no price has the model, or the price is out of bounds
		f.unknown(e.Detail)
		release, final = f.g.OnUnknown == unknownRelease, nil
		done, err = f.settle(ctx, release, final)
	}
	for try := 0; errors.Is(err, core.ErrUnavailable) && try < settleTries; try++ {
		time.Sleep(settlePause)
		done, err = f.settle(ctx, release, final)
	}
	if err == nil {
		f.g.app.settled(done, &w.state.decision)
	}
	if suppressed, ok := f.g.faults.Admit(time.Now()); err != nil && ok {
		f.g.log.Error("a hold was not settled: it ends as on_unknown says", zap.String("account", f.g.Account), zap.String("hold_id", f.hold),
			zap.String("error", secrets.MaskSecrets(err.Error())), zap.Int64("suppressed", suppressed))
	}
}

// How often, and after which pause, a hold is settled again while the store is unavailable.
const (
	settleTries = 10
	settlePause = time.Second
)

// settle releases the hold, or settles it with final costs. A nil final settles it with the held costs.
func (f *flight) settle(ctx context.Context, release bool, final *service.Final) (*service.Settled, error) {
	switch {
	case release:
		return f.service.Release(ctx, f.account, f.hold, "")
	case final != nil:
		return f.service.Settle(ctx, f.account, f.hold, final)
	}
	return f.service.Keep(ctx, f.account, f.hold)
}

// unknown counts and logs a request whose final cost is unknown.
func (f *flight) unknown(why string) {
	metrics.unknownUsage.WithLabelValues(f.g.Account).Inc()
	if suppressed, ok := f.g.unknownUsage.Admit(time.Now()); ok {
		f.g.log.Warn("the cost of a request is unknown: on_unknown decides", zap.String("account", f.g.Account), zap.String("reason", why), zap.Int("status", f.status),
			zap.Int64("suppressed", suppressed))
	}
}

// outcome returns how the hold ends: it is released, or settled with final costs. A nil final settles it with the held costs.
func (f *flight) outcome(h http.Header, cut bool) (release bool, final *service.Final) {
	switch s := f.status; {
	case f.g.CountOn == countSuccess && s != 0 && s != http.StatusSwitchingProtocols && (s < 200 || s >= 400), f.g.CountOn == countNot5xx && s >= 500:
		return true, nil
	case s == 0 && f.g.holds():
		f.unknown("the request has ended without an answer")
		return f.g.OnUnknown == unknownRelease, nil
	case f.g.Charge == nil, f.g.Charge.From == fromMCP && !cut:
		return false, nil
	}
	q, model, known := f.usage(h)
	if !known && f.status >= http.StatusBadRequest {
		q, known = core.Quantities{}, true // the answer of an error has used nothing
	}
	final = &service.Final{Model: cmp.Or(model, f.model), Usage: q, IgnoreUnknownMeters: true}
	if c := f.g.Charge; known && c.Of != chargePrices {
		var n int64
		n, known = c.cost(q)
		final.Usage, final.Model = nil, ""
		if c.Of == core.MeterRequests {
			final.Requests = &n
		} else {
			final.Costs = []core.MeterCost{{Meter: c.Of, Cost: n}}
		}
	}
	if !known {
		f.unknown("its answer does not say it")
		return f.g.OnUnknown == unknownRelease, nil
	}
	return false, final
}

// usage returns what the answer says.
func (f *flight) usage(h http.Header) (q core.Quantities, model string, known bool) {
	switch c := f.g.Charge; {
	case c.From == fromHeader:
		text := cmp.Or(h.Get(c.Name), h.Get(http.TrailerPrefix+c.Name))
		n, err := strconv.ParseInt(strings.TrimSpace(text), 10, 64)
		q = core.Quantities{"value": n}
		return q, "", err == nil && q.Check() == nil
	case f.reader == nil:
		return nil, "", false
	case c.From == fromJSON:
		value, known := f.reader.Value()
		q = core.Quantities(value)
		return q, "", known && q.Check() == nil
	}
	said, model, known := f.reader.Usage()
	q = core.Quantities(said)
	if (&core.PricedRequest{Model: model}).Check() != nil {
		model = ""
	}
	return q, model, known
}
