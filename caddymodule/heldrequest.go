package caddymodule

import (
	"cmp"
	"context"
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

// heldRequest is a request with an open hold, from the decision until its answer has ended. Then the hold is settled or released.
type heldRequest struct {
	g       *Gateway
	service *service.Service
	account string
	holdID  string
	model   string // of the request
	noBody  bool   // the request has no body, so it calls no model

	ctx  context.Context // of the request, without its cancellation
	w    *headerWriter
	stop func() // see keepOpen

	status    int
	length    int64 // the Content-Length of the answer; -1 if it is unknown
	sent      int64 // bytes of the answer
	ended     bool
	reader    *aiusage.Reader // of the answer; nil if its body does not have the usage
	dropUsage bool            // the gateway has asked for the usage of a stream, and the client has not
}

// askHold sets the hold of a request. If nothing is held on the charged meter, the request passes only while the meter has something left.
func (g *Gateway) askHold(q *service.Request, body *requestBody) {
	q.InFlight = holdTime
	if !g.alwaysHolds() {
		return
	}
	q.HoldFor = holdTime
	if g.OnUnknown == unknownRelease {
		q.OnExpiry = core.ReleaseHeld
	}
	c := g.Charge
	switch {
	case c == nil, body == nil && c.callsModel():
		return
	case c.Of == chargePrices:
		q.AnyModel = true
		return
	case c.Of == core.MeterRequests && !q.CostByPrice:
		return
	}
	for _, m := range q.Costs {
		if m.Meter == c.Of {
			return
		}
	}
	q.Later = append(q.Later, c.Of)
}

// next calls the next handler. If the request has a hold, next ends it afterwards.
func (g *Gateway) next(w *headerWriter, r *http.Request, next caddyhttp.Handler, v *requestState) (err error) {
	f := g.newHeldRequest(v)
	if f == nil {
		return next.ServeHTTP(w, r)
	}
	w.held, f.w = f, w
	metrics.inFlight.Inc()
	f.ctx = context.WithoutCancel(r.Context())
	f.stop = f.keepOpen(f.ctx)
	failed := true // also after a panic: reverse_proxy panics when the upstream cuts an answer
	defer func() { f.finish(failed || err != nil || r.Context().Err() != nil, err) }()
	if g.Charge.readsAnswer() {
		r.Header.Set("Accept-Encoding", "identity")
		dropConnection(r.Header, "Accept-Encoding")
	}
	err = next.ServeHTTP(w, r)
	failed = false
	return err
}

// sendBody makes the request send the body that was read. Only a request with a hold is changed.
func (g *Gateway) sendBody(r *http.Request, v *requestState) {
	switch {
	case v.decision.HoldID == "":
		v.body.edits = nil
	case v.clamped >= 0:
		g.lower(r, v.body, g.clampedCost(), v.clamped)
	}
	v.body.apply(r)
}

// dropConnection removes a name from the fields Connection, so that no proxy removes the field of that name.
func dropConnection(h http.Header, name string) {
	editLines(h, "Connection", func(line string) string {
		return editPairs(line, ",", func(word string) (string, bool) { return word, !strings.EqualFold(strings.TrimSpace(word), name) })
	})
}

// newHeldRequest returns the held request of a decision, nil without a hold.
func (g *Gateway) newHeldRequest(v *requestState) *heldRequest {
	svc, err := g.app.service()
	if err != nil || v.decision.HoldID == "" || v.decision.Repeated {
		return nil
	}
	return &heldRequest{g: g, service: svc, account: v.decision.Account, holdID: v.decision.HoldID, model: v.model, noBody: v.body == nil, dropUsage: v.addedUsage, length: -1}
}

// beginAnswer records the status of the answer, and makes the reader if the body can have the usage. A nil held request does nothing.
func (f *heldRequest) beginAnswer(status int, h http.Header) {
	if f == nil || f.status != 0 {
		return
	}
	f.status = status
	inTrailer := f.g.from() == fromHeader && h.Get(f.g.Charge.Name) == ""
	if n, err := strconv.ParseInt(h.Get("Content-Length"), 10, 64); err == nil && !inTrailer {
		f.length = n
	}
	if !f.g.Charge.readsAnswer() || status >= http.StatusMultipleChoices {
		return
	}
	kind, _, _ := mime.ParseMediaType(h.Get("Content-Type"))
	if encoding := h.Get("Content-Encoding"); encoding != "" && !strings.EqualFold(encoding, "identity") {
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
		f.reader.SetEvents(f.dropUsage)
		if f.dropUsage {
			h.Del("Content-Length")
			f.length = -1
		}
	}
}

// write relays a piece of the answer. Before the last piece of an answer whose length is known, the hold ends: the client may send its next request
// as soon as it has that piece.
func (f *heldRequest) write(w io.Writer, h http.Header, p []byte) (int, error) {
	f.beginAnswer(http.StatusOK, h)
	relay := p
	if f.reader != nil {
		relay = f.reader.Pass(p)
	}
	if f.sent += int64(len(relay)); f.sent == f.length {
		f.finish(false, nil)
	}
	if len(relay) > 0 {
		if _, err := w.Write(relay); err != nil {
			return 0, err
		}
	}
	return len(p), nil
}

// keepOpen extends the hold every quarter of holdTime, until stop is called. No extension runs after stop has returned.
func (f *heldRequest) keepOpen(ctx context.Context) (stop func()) {
	var mu sync.Mutex
	var timer *time.Timer
	var stopped bool
	var extend func()
	extend = func() {
		mu.Lock()
		defer mu.Unlock()
		if !stopped {
			_ = f.service.ExtendHold(ctx, f.account, f.holdID, holdTime) // the next attempt comes before the hold ends
			timer = time.AfterFunc(holdTime/4, extend)
		}
	}
	mu.Lock()
	defer mu.Unlock()
	timer = time.AfterFunc(holdTime/4, extend)
	return func() {
		mu.Lock()
		defer mu.Unlock()
		stopped = true
		timer.Stop()
	}
}

// finish settles or releases the hold, once. cut says that the answer may not be complete, and failure is the error of the next handler.
func (f *heldRequest) finish(cut bool, failure error) {
	if f.ended {
		return
	}
	f.ended = true
	f.stop()
	metrics.inFlight.Dec()
	if f.reader != nil {
		if rest := f.reader.Rest(); len(rest) > 0 {
			_, _ = f.w.ResponseWriterWrapper.Write(rest)
			f.w.Flush()
		}
	}
	if failed, ok := errors.AsType[caddyhttp.HandlerError](failure); ok && f.status == 0 {
		f.status = failed.StatusCode
	}
	switch {
	case f.status == statusClientGone && cut:
		f.status = 0
	case f.status == 0 && !cut:
		f.status = http.StatusOK // the handler has written nothing
	}
	release, final := f.outcome(f.w.Header(), cut)
	done, err := f.settle(release, final)
	if errors.Is(err, core.ErrUnavailable) {
		go f.settleAgain(release, final) // the client does not wait
		return
	}
	f.settled(done, err)
}

// settleAgain settles the hold while the store is unavailable, until settleTries.
func (f *heldRequest) settleAgain(release bool, final *service.Final) {
	var done *service.Settled
	var err error = core.ErrUnavailable
	for try := 0; errors.Is(err, core.ErrUnavailable) && try < settleTries; try++ {
		time.Sleep(settlePause)
		done, err = f.settle(release, final)
	}
	f.settled(done, err)
}

// settled reports the end of the hold, or logs why it has none.
func (f *heldRequest) settled(done *service.Settled, err error) {
	if err == nil {
		f.g.app.settled(done, &f.w.state.decision)
	}
	if suppressed, ok := f.g.faults.Admit(time.Now()); err != nil && ok {
		f.g.log.Error("cannot settle a hold: it expires within a minute, and on_unknown decides what it costs", zap.String("account", f.g.Account), zap.String("hold_id", f.holdID),
			zap.String("error", secrets.MaskSecrets(err.Error())), zap.Int64("suppressed", suppressed))
	}
}

// statusClientGone is the status of Caddy's reverse_proxy for a client that has left before the answer. The upstream may have done the work.
const statusClientGone = 499

// How often, and after which pause, a hold is settled again while the store is unavailable.
const (
	settleTries = 10
	settlePause = time.Second
)

// settle releases the hold, or settles it with final costs. A nil final settles it with the held costs, and one that no price has is unknown.
func (f *heldRequest) settle(release bool, final *service.Final) (*service.Settled, error) {
	switch {
	case release:
		return f.service.Release(f.ctx, f.account, f.holdID, "")
	case final != nil:
		done, err := f.service.Settle(f.ctx, f.account, f.holdID, final)
		if e, ok := errors.AsType[*core.Error](err); ok && e.Code == core.CodeValidation {
			return f.settle(f.unknown(e.Detail), nil)
		}
		return done, err
	}
	return f.service.Keep(f.ctx, f.account, f.holdID)
}

// unknown counts and logs a request whose final cost is unknown. It returns what on_unknown says.
func (f *heldRequest) unknown(why string) (release bool) {
	release = f.g.OnUnknown == unknownRelease
	metrics.unknownUsage.WithLabelValues(f.g.Account).Inc()
	if suppressed, ok := f.g.unknownUsage.Admit(time.Now()); ok {
		says := "the cost of a request is unknown: what was held stays counted"
		if release {
			says = "the cost of a request is unknown: everything was given back"
		}
		f.g.log.Warn(says, zap.String("account", f.g.Account), zap.String("reason", why), zap.Int("status", f.status), zap.Int64("suppressed", suppressed))
	}
	return release
}

// outcome returns how the hold ends: it is released, or settled with final costs. A nil final settles it with the held costs.
func (f *heldRequest) outcome(h http.Header, cut bool) (release bool, final *service.Final) {
	switch s := f.status; {
	case f.g.CountOn == countSuccess && s != 0 && s != http.StatusSwitchingProtocols && (s < 200 || s >= 400), f.g.CountOn == countNot5xx && s >= 500:
		return true, nil
	case s == 0 && f.g.alwaysHolds():
		return f.unknown("the request has ended without an answer"), nil
	case f.g.Charge == nil, f.g.Charge.From == fromMCP && !cut:
		return false, nil
	}
	if f.noBody && f.g.Charge.callsModel() { // such as the answer of a stored response, whose usage was charged before
		return false, f.nothing()
	}
	q, model, whole := f.usage(h)
	if q == nil && f.status >= http.StatusBadRequest {
		return false, f.nothing()
	}
	if q == nil || !whole {
		why := "the answer has no usage"
		if cut || q != nil {
			why = "the answer ended before it said the whole usage: the client has left, or the upstream has cut it"
		}
		if release = f.unknown(why); q == nil {
			return release, nil
		}
	}
	final = &service.Final{Model: cmp.Or(model, f.model), Usage: q, IgnoreUnknownMeters: true, AtLeastHeld: !whole && !release}
	if c := f.g.Charge; c.Of != chargePrices {
		n, _ := c.cost(q)
		final.Usage, final.Model = nil, ""
		f.setCost(final, c.Of, n)
	}
	return false, final
}

// nothing returns the final costs of a request that has used nothing: the charged meters that were held cost 0.
func (f *heldRequest) nothing() *service.Final {
	final := &service.Final{IgnoreUnknownMeters: true}
	for i := range f.g.costs {
		if c := &f.g.costs[i]; c.meter != core.MeterRequests && f.g.Charge.Of == chargePrices {
			f.setCost(final, c.meter, 0)
		}
	}
	if c := f.g.Charge; c.Of != chargePrices {
		f.setCost(final, c.Of, 0)
	}
	if final.Requests == nil && len(final.Costs) == 0 {
		return nil
	}
	return final
}

// setCost sets the final cost on a meter.
func (f *heldRequest) setCost(final *service.Final, meter string, n int64) {
	if meter == core.MeterRequests {
		final.Requests = new(min(n, core.MaxCost))
		return
	}
	final.Costs = append(final.Costs, core.MeterCost{Meter: meter, Cost: min(n, core.MaxMeterCost)})
}

// usage returns what the answer says, nil if it says nothing. It is whole unless the answer was cut.
func (f *heldRequest) usage(h http.Header) (q core.Quantities, model string, whole bool) {
	switch c := f.g.Charge; {
	case c.From == fromHeader:
		text := cmp.Or(h.Get(c.Name), h.Get(http.TrailerPrefix+c.Name))
		n, err := strconv.ParseInt(strings.TrimSpace(text), 10, 64)
		if q = (core.Quantities{"value": n}); err != nil || q.Check() != nil {
			return nil, "", false
		}
		return q, "", true
	case f.reader == nil:
		return nil, "", false
	case c.From == fromJSON:
		value, known := f.reader.Value()
		if q = core.Quantities(value); !known || q.Check() != nil {
			return nil, "", false
		}
		return q, "", true
	}
	said, model, whole := f.reader.Usage()
	if q = core.Quantities(said); q.Check() != nil {
		return nil, "", false
	}
	if (&core.PricedRequest{Model: model}).Check() != nil {
		model = ""
	}
	return q, model, whole
}
