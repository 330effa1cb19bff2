package core

import (
	"context"
	"math"
	"sync"
	"time"
)

// The default bound of an owner's key: in any minute at most 1000 requests.
const (
	DefaultThrottleLimit  = 1000
	DefaultThrottleWindow = time.Minute
)

// The bound of the dashboard: in any minute an account is served at most 1000 pages and
// forms. The live parts of pages, which ask without a person, have the same bound apart.
const (
	DashboardLimit  = 1000
	DashboardWindow = time.Minute
)

// Throttle admits at most so many requests of a key in any span of a length: a
// sliding log, exact for every span and not only for aligned ones. It holds the
// times of the admitted requests of the last span, 8 bytes each.
type Throttle struct {
	mu     sync.Mutex
	limit  int // 0: off
	window time.Duration
	epoch  time.Time // the times in the logs are nanoseconds since
	logs   map[string]*throttleLog
	sweep  int // sweep when there are as many logs
}

// throttleLog is a ring of the times of the newest admitted requests.
type throttleLog struct {
	times  []int64
	oldest int

	refused  int64 // requests since the last report
	reportAt int64 // the time from which the next refusal is reported; 0 before the first one
}

// reportEvery is how often the refusals of a key are reported at most.
const reportEvery = time.Minute

// NewThrottle returns a throttle that admits limit requests in any window. A limit
// of 0 admits everything.
func NewThrottle(limit int, window time.Duration, now time.Time) *Throttle {
	return &Throttle{limit: limit, window: window, epoch: now, logs: map[string]*throttleLog{}, sweep: minSweep}
}

// minSweep is how many logs are kept before the idle ones are looked for.
const minSweep = 1024

// SetLimit changes the bound. What was admitted before still counts, unless limit
// or window differ: then the count begins anew.
func (t *Throttle) SetLimit(limit int, window time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if limit != t.limit || window != t.window {
		t.limit, t.window = limit, window
		clear(t.logs)
	}
}

// Admit reports whether a request of the key is admitted at the time now, and if
// not, how long until the next one is. Refused requests do not count.
func (t *Throttle) Admit(key string, now time.Time) (wait time.Duration, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.limit <= 0 {
		return 0, true
	}
	l := t.logLocked(key, now)
	at := int64(now.Sub(t.epoch))
	if len(l.times) < t.limit {
		l.times = append(l.times, at)
		return 0, true
	}
	if wait := time.Duration(l.times[l.oldest]-at) + t.window; wait > 0 {
		return wait, false
	}
	l.times[l.oldest] = at
	l.oldest = (l.oldest + 1) % t.limit
	return 0, true
}

// CountRefusal counts a refused request. At most once a minute it returns the refusals since
// the last report, including this one; otherwise 0.
func (t *Throttle) CountRefusal(key string, now time.Time) (report int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	l, at := t.logLocked(key, now), int64(now.Sub(t.epoch))
	l.refused++
	if at < l.reportAt {
		return 0
	}
	report, l.refused, l.reportAt = l.refused, 0, at+int64(reportEvery)
	return report
}

// logLocked returns the log of a key. When there are many it drops those that hold
// nothing of the last span, and were not reported in the last minute.
func (t *Throttle) logLocked(key string, now time.Time) *throttleLog {
	if l, ok := t.logs[key]; ok {
		return l
	}
	if len(t.logs) >= t.sweep {
		at := int64(now.Sub(t.epoch))
		for k, l := range t.logs {
			if l.newest() <= at-int64(t.window) && l.reportAt <= at {
				delete(t.logs, k)
			}
		}
		t.sweep = max(minSweep, 2*len(t.logs))
	}
	l := &throttleLog{}
	t.logs[key] = l
	return l
}

// newest returns the time of the last admitted request.
func (l *throttleLog) newest() int64 {
	if len(l.times) == 0 {
		return 0
	}
	return l.times[(l.oldest+len(l.times)-1)%len(l.times)]
}

// WholeSeconds rounds up to seconds, and to 1 at least: a client that waits that long does not
// come a moment too early.
func WholeSeconds(d time.Duration) int64 {
	return max(1, int64((d+time.Second-1)/time.Second))
}

// maxWaitingQueries is how many large queries of one account wait for their turn. The next one is
// [ErrTooManyRequests].
const maxWaitingQueries = 16

// keyedMutex let each account run one large query at a time: one that reads all counters of a
// plan, a user or the account. However often an account asks, it keeps at most one CPU busy.
type keyedMutex struct {
	mu    sync.Mutex
	byKey map[string]*keyedLock // while a query runs or waits
}

type keyedLock struct {
	free    chan struct{} // holds a token while no query runs
	holders int           // queries that run or wait
}

// lock waits for the turn of an account, and returns the function that ends it.
func (t *keyedMutex) lock(ctx context.Context, account string) (end func(), err error) {
	q, err := t.addWaiter(account)
	if err != nil {
		return nil, err
	}
	select {
	case <-q.free:
		return func() { q.free <- struct{}{}; t.release(account, q) }, nil
	case <-ctx.Done():
		t.release(account, q)
		return nil, ctx.Err()
	}
}

// addWaiter counts one more query of an account that runs or waits.
func (t *keyedMutex) addWaiter(account string) (*keyedLock, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	q := t.byKey[account]
	if q == nil {
		q = &keyedLock{free: make(chan struct{}, 1)}
		q.free <- struct{}{}
		if t.byKey == nil {
			t.byKey = map[string]*keyedLock{}
		}
		t.byKey[account] = q
	}
	if q.holders > maxWaitingQueries {
		return nil, ErrTooManyRequests
	}
	q.holders++
	return q, nil
}

// release counts one query less.
func (t *keyedMutex) release(account string, q *keyedLock) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if q.holders--; q.holders == 0 {
		delete(t.byKey, account)
	}
}

// manyCounters is the size of a query that may read all counters of an account.
const manyCounters = math.MaxInt

// runQuery runs read, which covers n counters. If n is more than 1,000 (batch), runQuery first
// waits for the account's other large queries.
func (s *Service) runQuery(ctx context.Context, account string, n int, read func() error) error {
	if n <= batchSize {
		return read()
	}
	end, err := s.largeQueries.lock(ctx, account)
	if err != nil {
		return err
	}
	defer end()
	return read()
}
