package service

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
)

// Events of limits (threshold, exhausted, forecast) are written in two steps, so that a decision waits for no event:
//
//   - A decision that may cause a new event adds a reading of the limit to eventQueue, in memory. The jobs that rank counters add readings, too.
//   - WriteEvents makes the events of the queued readings, and stores them. The id of an event is made of the counter, the limit, the window and the threshold, so
//     that an event is stored once, whatever is read again and on whatever node.
//
// After a crash, RankAccounts reads all counters once, and so makes the readings again that were lost with the memory.

// watchLimits queues readings of the limits of a request. It skips a request that can cause no new event: last is the hash of the stages that the last
// request of the key or user has recorded, see [core.Consumption.StageHash].
func (s *Service) watchLimits(c *core.Consumption, v *core.ConsumeResult, last *atomic.Uint64) {
	thresholds := s.tunables.Load().EventThresholds
	hash := c.StageHash(v, thresholds)
	if hash == 0 {
		return
	}
	hash ^= uint64(c.Entry.At.Unix() / int64(rankAgainAfter/time.Second)) // another node may have lost the reading
	if last.Swap(hash) != hash {
		s.eventQueue.addReadings(c.Account, c.Readings(v, thresholds))
	}
}

// readLimits queues readings of counters with their present usage. If the last request of a counter was in a window that has ended at most an hour ago, it
// also queues readings of that window: the server may have been down at its end.
func (s *Service) readLimits(ctx context.Context, account string, list []counterTerms, counters []core.Counter, usages [][]core.LimitUsage) {
	thresholds, now := s.tunables.Load().EventThresholds, s.now()
	for i, c := range list {
		owner := c.owner()
		readings := owner.ReadLimits(usages[i], now, thresholds)
		used := time.Unix(counters[i].At, 0)
		var ended []core.LimitUsage
		for _, u := range usages[i] {
			if u.Window.Start.After(used) {
				u.Usage = counters[i].Usage(u.Meter, u.Period, c.user.Anchors, used)
				ended = append(ended, u)
			}
		}
		for _, r := range owner.ReadLimits(ended, used, thresholds) {
			if r.IsReportedAt(now) {
				readings = append(readings, r)
			}
		}
		if s.eventQueue.addReadings(account, readings); len(readings) > 0 {
			s.writeManyEvents(ctx, account)
		}
	}
}

// The bounds of the work of WriteEvents.
const (
	maxStoredIDs = 50_000 // ids of stored events in memory: about 10 MB
	maxWritten   = 1000   // readings of an account in one call
)

// WriteEvents stores queued events, and the events of queued readings: at most maxWritten of each account. Call it every second. After an error of one account,
// WriteEvents continues with the other accounts, and the next call repeats that account.
func (s *Service) WriteEvents(ctx context.Context) error {
	var failed error
	for _, account := range s.eventQueue.accounts() {
		failed = errors.Join(failed, s.writeEventsOf(ctx, account))
	}
	return failed
}

// FlushEvents calls WriteEvents until the queue is empty. Call it after the last decision.
func (s *Service) FlushEvents(ctx context.Context) (err error) {
	for err == nil && len(s.eventQueue.accounts()) > 0 {
		err = s.WriteEvents(ctx)
	}
	return err
}

// writeEventsOf stores the events of at most maxWritten readings of an account.
func (s *Service) writeEventsOf(ctx context.Context, account string) error {
	s.writing.Lock() // events of one counter are stored in the order of their thresholds
	defer s.writing.Unlock()
	readings, events := s.eventQueue.take(account, maxWritten)
	written, err := s.eventsOf(ctx, account, readings)
	if err == nil {
		err = s.reportEvents(ctx, account, append(written, events...))
	}
	if err != nil && !errors.Is(err, core.ErrAccountNotFound) && core.ErrorCode(err) != core.CodeValidation { // events with the ids of stored ones are not stored again
		s.eventQueue.addReadings(account, readings)
		s.eventQueue.addEvents(account, events...)
		return err
	}
	return nil
}

// writeManyEvents stores events while half of the queue is full: a job that reads all counters adds more than fits. The next WriteEvents returns its errors.
func (s *Service) writeManyEvents(ctx context.Context, account string) {
	for s.eventQueue.isHalfFull(account) && s.writeEventsOf(ctx, account) == nil {
		continue
	}
}

// eventsOf returns the events of readings that this node has not stored yet. Events of earlier readings come first.
func (s *Service) eventsOf(ctx context.Context, account string, readings []core.LimitReading) (events []*core.Event, err error) {
	slices.SortFunc(readings, func(a, b core.LimitReading) int {
		return cmp.Or(a.At.Compare(b.At), cmp.Compare(a.Meter, b.Meter), cmp.Compare(a.Period, b.Period))
	})
	thresholds := s.tunables.Load().EventThresholds
	var forecasts []core.LimitReading
	for i := range readings {
		r := &readings[i]
		events = append(events, r.Events(thresholds)...)
		if r.HasForecast() && !s.storedIDs.Contains(r.Forecast(time.Time{}).ID) {
			forecasts = append(forecasts, *r)
		}
	}
	for part := range slices.Chunk(forecasts, core.ReadSize) {
		inputs := make([]forecastInput, len(part))
		for i, r := range part {
			inputs[i] = forecastInput{r.Counter, r.Counter, []core.LimitUsage{r.LimitUsage}}
		}
		all, err := s.forecasts(ctx, inputs)
		if err != nil {
			return nil, err
		}
		for i, r := range part {
			if at := all[i][0]; !at.IsZero() && at.After(s.now()) {
				events = append(events, r.Forecast(at))
			}
		}
	}
	return slices.DeleteFunc(events, func(e *core.Event) bool { return s.storedIDs.Contains(e.ID) }), nil
}

// reportEvents stores the events that the account does not have yet, and reports them to OnEvent.
func (s *Service) reportEvents(ctx context.Context, account string, events []*core.Event) error {
	for part := range slices.Chunk(events, eventsPerTransaction) {
		if err := s.PutEvents(ctx, account, part...); err != nil {
			return err
		}
		for _, e := range part {
			if s.storedIDs.Add(e.ID, struct{}{}); e.Seq > 0 {
				s.onEvent(account, e)
			}
		}
	}
	return nil
}

// owner returns the counter with its user, its plan and its anchors.
func (c counterTerms) owner() core.CounterOwner {
	o := core.CounterOwner{Counter: c.CounterID, UserID: c.user.ID, Anchors: c.user.Anchors}
	if c.plan != nil {
		o.PlanID = c.plan.ID
	}
	return o
}
