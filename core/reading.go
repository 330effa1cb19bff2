package core

import (
	"fmt"
	"time"
)

// The bounds of thresholds, in per cent of a limit.
const (
	MinEventThreshold  = RankFrom // a decision computes no lower share of a limit
	MaxEventThreshold  = 100
	MaxEventThresholds = 10
)

// DefaultEventThresholds returns the thresholds of a server that configures none, in per cent.
func DefaultEventThresholds() []int64 { return []int64{80, 100} }

// CheckEventThresholds returns an error unless a list is 1 to MaxEventThresholds whole numbers of per cent within the bounds, ascending and without
// duplicates.
func CheckEventThresholds(list []int64) error {
	if len(list) == 0 || len(list) > MaxEventThresholds {
		return fmt.Errorf("want 1 to %d thresholds in per cent, such as 80 100, got %d", MaxEventThresholds, len(list))
	}
	for i, t := range list {
		switch {
		case t < MinEventThreshold || t > MaxEventThreshold:
			return fmt.Errorf("want whole numbers of per cent from %d to %d, got %d", MinEventThreshold, MaxEventThreshold, t)
		case i > 0 && t == list[i-1]:
			return fmt.Errorf("%d is given twice", t)
		case i > 0 && t < list[i-1]:
			return fmt.Errorf("want the thresholds in ascending order, got %d after %d", t, list[i-1])
		}
	}
	return nil
}

// forecastStep is the number of per cent after which a decision causes another forecast of a limit: about 10 forecasts between RankFrom and 100 per cent. While
// requests use the limit, the forecast is also repeated every 10 minutes.
const forecastStep = 5

// LimitReading is the usage of a limit of one counter at a time, at least RankFrom per cent.
type LimitReading struct {
	Counter CounterID
	UserID  int64  // of the counter, or of its key
	PlanID  string // of the plan in force, "" for none
	LimitUsage
	Fill  Fill      // of the limit
	Since int64     // the usage counts from this time on, in Unix seconds: see [Anchors.Since]
	At    time.Time // of the reading
}

// ReadingID identifies a limit of one counter in the time in which its usage counts. Another maximum is another limit.
type ReadingID struct {
	Counter CounterID
	Meter   string
	Period  Period
	Max     int64
	Since   int64
}

// ID returns the identity of the limit.
func (r *LimitReading) ID() ReadingID {
	return ReadingID{r.Counter, r.Meter, r.Period, r.Max, r.Since}
}

// CounterOwner is a counter with its user, its plan and the anchors of its windows.
type CounterOwner struct {
	Counter CounterID
	UserID  int64  // of the counter, or of its key
	PlanID  string // of the plan in force, "" for none
	Anchors Anchors
}

// ReadLimits returns the limits of one counter that may cause an event at a time: a threshold is reached, or a forecast is due.
func (o CounterOwner) ReadLimits(limits []LimitUsage, at time.Time, thresholds []int64) (list []LimitReading) {
	for i := range limits {
		u := &limits[i]
		if f, ok := u.fill(u.Usage, o.Anchors); ok && f.stage(thresholds) > 0 {
			list = append(list, LimitReading{o.Counter, o.UserID, o.PlanID, *u, f, o.Anchors.countedSince(u.Period, u.Window), at.UTC()})
		}
	}
	return list
}

// countedSince returns the time from which usage counts in a window of a period, in Unix seconds: see [Anchors.Since].
func (a Anchors) countedSince(p Period, w Window) int64 {
	if len(a) == 0 || !p.anchored() {
		return w.Start.Unix()
	}
	since, _ := a.since(p, w.End.Unix()-1)
	return since
}

// Readings returns the limits of a request that may cause an event after its decision.
func (c *Consumption) Readings(v *ConsumeResult, thresholds []int64) []LimitReading {
	limits := v.Limits
	if limits == nil {
		limits = []LimitUsage{{Limit: c.LimitAt(0), Of: c.OriginAt(0), Usage: v.Usage}}
	}
	shared := len(limits)
	if c.Shared {
		shared = min(shared, 1+len(c.Further))
	}
	deciding := CounterOwner{c.DecidingCounter(), c.UserID, c.PlanID, c.Anchors}
	own := CounterOwner{CounterID{Account: c.Account, KeyID: c.KeyID}, c.UserID, c.PlanID, c.Anchors}
	return append(deciding.ReadLimits(limits[:shared], c.Entry.At, thresholds), own.ReadLimits(limits[shared:], c.Entry.At, thresholds)...)
}

// StageHash returns a hash that changes when a limit of the request may cause a new event, 0 while no limit can cause one. It allocates no memory.
func (c *Consumption) StageHash(v *ConsumeResult, thresholds []int64) (hash uint64) {
	if v.Limits == nil { // the usual request, without copies
		l := c.LimitAt(0)
		if f, ok := l.fill(v.Usage, c.Anchors); ok {
			hash = f.stageHash(l.Max, 0, thresholds)
		}
		return hash
	}
	for i := range v.Limits {
		l := &v.Limits[i]
		if f, ok := l.fill(l.Usage, c.Anchors); ok {
			if next := f.stageHash(l.Max, hash+uint64(i), thresholds); next != 0 {
				hash = next
			}
		}
	}
	return hash
}

// stageHash returns a hash of the stage of the fill, of the limit and of a seed, 0 if the fill causes no event.
func (f Fill) stageHash(limit int64, seed uint64, thresholds []int64) uint64 {
	if f.Percent = f.stage(thresholds); f.Percent == 0 {
		return 0
	}
	return f.hash(seed ^ uint64(limit)<<8)
}

// stage returns a number that grows with each threshold that the fill reaches, with 100 per cent, and, if the period is forecast, with every forecastStep
// per cent. It is 0 while the fill causes no event.
func (f Fill) stage(thresholds []int64) (stage int64) {
	for _, t := range thresholds {
		if f.Percent >= t {
			stage++
		}
	}
	if f.Percent >= 100 {
		stage++
	}
	if f.Period.isForecast() {
		stage += min(f.Percent, 100) / forecastStep * (MaxEventThresholds + 2)
	}
	return stage
}

// isForecast reports whether limits of the period are forecast: days, weeks, months and years. Minutes and hours are over before anybody can act, and a
// lifetime has no reset.
func (p Period) isForecast() bool { return p <= Year }

// HasForecast reports whether the limit can be used up before its reset, and is not used up yet.
func (r *LimitReading) HasForecast() bool { return r.Period.isForecast() && r.Used < r.Max }

// Subject names a counter for the order of its events: the id of its key, or user_ with the number of its user.
func (id CounterID) Subject() string {
	if id.KeyID != "" {
		return id.KeyID
	}
	return fmt.Sprint("user_", id.UserID)
}

// readingGrace is how long a reading of a window still causes events after the end of the window: a server that was down finds it in the counter.
const readingGrace = time.Hour

// IsReportedAt reports whether a reading causes events at a time: its window has not ended, or has ended at most readingGrace ago.
func (r *LimitReading) IsReportedAt(now time.Time) bool {
	return !r.Window.Ends() || now.Before(r.Window.End.Add(readingGrace))
}

// MaxEventMemory is how long the ids of the events of a limit without a reset are remembered: longer than all others.
const MaxEventMemory = 10 * 366 * 24 * time.Hour

// rememberUntil returns the time until which an account remembers the ids of the events of the reading: after the last reading of a window that ends.
func (r *LimitReading) rememberUntil() time.Time {
	if r.Fill.End == NoEnd {
		return r.At.Add(MaxEventMemory)
	}
	return time.Unix(r.Fill.End, 0).UTC().Add(2 * readingGrace)
}

// limitData is the data of the events of a limit.
type limitData struct {
	UserID     int64      `json:"user_id"`
	KeyID      *string    `json:"key_id"`
	PlanID     *string    `json:"plan_id"`
	Meter      string     `json:"meter"`
	Period     Period     `json:"period"`
	Threshold  int64      `json:"threshold,omitzero"`
	Used       int64      `json:"used"`
	Max        int64      `json:"max"`
	ResetTime  *time.Time `json:"reset_time"`
	ExhaustsAt *time.Time `json:"exhausts_at,omitempty"`
}

// event returns an event of the limit. Its id is made of its type, the limit and the threshold: of the readings of a window, only the first causes the event.
func (r *LimitReading) event(eventType string, threshold int64, exhaustsAt time.Time) *Event {
	d := limitData{UserID: r.UserID, KeyID: orNil(r.Counter.KeyID), PlanID: orNil(r.PlanID), Meter: r.Meter, Period: r.Period, Threshold: threshold, Used: r.Used, Max: r.Max}
	if r.Window.Ends() {
		d.ResetTime = &r.Window.End
	}
	if !exhaustsAt.IsZero() {
		d.ExhaustsAt = &exhaustsAt
	}
	subject := r.Counter.Subject()
	return &Event{ID: EventID(eventType, r.Counter.Account, subject, r.Meter, r.Period, r.Since, r.Max, threshold), Type: eventType, Subject: subject, At: r.At,
		Until: r.rememberUntil(), Data: eventData(d)}
}

// Events returns the events of the thresholds that the limit has reached, ascending, and last the event of a limit that is used up.
func (r *LimitReading) Events(thresholds []int64) (list []*Event) {
	for _, t := range thresholds {
		if r.Fill.Percent >= t {
			list = append(list, r.event(EventThreshold, t, time.Time{}))
		}
	}
	if r.Fill.Percent >= 100 {
		list = append(list, r.event(EventExhausted, 100, time.Time{}))
	}
	return list
}

// Forecast returns the event of a limit that is used up at a time before its reset.
func (r *LimitReading) Forecast(exhaustsAt time.Time) *Event {
	return r.event(EventForecast, 0, exhaustsAt)
}
