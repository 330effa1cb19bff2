package service

import (
	"context"
	"errors"
	"math"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/internal/keyedmutex"
)

// The default bound of an owner's key: in any minute at most 1000 requests.
const (
	DefaultThrottleLimit  = 1000
	DefaultThrottleWindow = time.Minute
)

// accountThrottleFactor is how many times the bound of an owner's key the bound of an account is: an account has up to MaxOwnerKeys.
const accountThrottleFactor = 10

// The bound of the dashboard: an account may request 1000 pages and forms in any minute.
// Automatic refreshes of open pages have a separate bound of the same size.
const (
	DashboardLimit  = 1000
	DashboardWindow = time.Minute
)

// ErrTooManyRequests means that the account is over service_rate_limit, or that 16 of its large
// queries already wait.
var ErrTooManyRequests = &core.Error{Code: core.CodeRateLimitExceeded, Message: "Too many requests to this API"}

// Throttle admits at most limit requests of a key in any window: a sliding log, exact for every
// window and not only for aligned ones. It holds the times of the admitted requests of the last
// window, 8 bytes each.
type Throttle struct {
	mu     sync.Mutex
	limit  int // 0: off
	window time.Duration
	epoch  time.Time // zero of the times in the logs, in nanoseconds
	logs   map[string]*throttleLog
	sweep  int // drop idle logs above this number of logs

	refused atomic.Uint64 // calls of CountRefusal
}

// throttleLog is a ring of the times of the newest admitted requests.
type throttleLog struct {
	times  []int64
	oldest int

	refused  int64 // requests since the last report
	reportAt int64 // the time from which the next refusal is reported; 0 before the first one
}

// reportEvery is the shortest time between two reports of refusals of one key.
const reportEvery = time.Minute

// NewThrottle returns a throttle that admits limit requests in any window. A limit of 0 admits
// every request.
func NewThrottle(limit int, window time.Duration, now time.Time) *Throttle {
	return &Throttle{limit: limit, window: window, epoch: now, logs: map[string]*throttleLog{}, sweep: minSweep}
}

// minSweep is the number of logs above which idle logs are dropped.
const minSweep = 1024

// Limit returns the bound, 0 for none, and the window.
func (t *Throttle) Limit() (int, time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.limit, t.window
}

// SetLimit changes the bound. If limit or window differ, the throttle forgets all requests.
func (t *Throttle) SetLimit(limit int, window time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if limit != t.limit || window != t.window {
		t.limit, t.window = limit, window
		clear(t.logs)
	}
}

// Admit reports whether a request of the key is admitted at the time now, and if not, how long
// until the next one is. Refused requests do not count.
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
	t.refused.Add(1)
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

// logLocked returns the log of a key. Above t.sweep logs it first drops the logs without a request
// in the last window and without a report in the last minute.
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

// WholeSeconds rounds d up to seconds, at least 1: a client that waits that long is not refused for
// coming a moment too early.
func WholeSeconds(d time.Duration) int64 {
	return max(1, int64((d+time.Second-1)/time.Second))
}

// maxWaitingQueries is the number of large queries of one account that may wait. The next one is
// [ErrTooManyRequests].
const maxWaitingQueries = 16

// newLargeQueries returns the mutex of large queries, by account. A large query reads more than ReadSize counters, all plans, or the users,
// keys or history of an account.
func newLargeQueries() *keyedmutex.Mutex { return &keyedmutex.Mutex{MaxWaiting: maxWaitingQueries} }

// After a large query its account rests queryRestFactor times as long as the query took, at most maxQueryRest: queries without a pause kept
// a CPU busy. After a query shorter than minQueryTime it does not rest.
const (
	queryRestFactor = 3
	maxQueryRest    = time.Second
	minQueryTime    = time.Millisecond
)

// wholeAccount is the size of a query that may read all resources of one kind of an account.
const wholeAccount = math.MaxInt

// newProcessors returns all processors of the process but one, or the only one: for hashes of passwords, and for large queries of a store
// that waits for no network. They take processors for a second; requests find one free. With two such tasks on two processors, the latency
// of 99 % of requests was 48 ms in place of 8.
func newProcessors() *semaphore.Weighted {
	return semaphore.NewWeighted(int64(max(1, runtime.GOMAXPROCS(0)-1)))
}

// runQuery runs read, which covers n counters. Above 1,000 counters (ReadSize) it first waits for the other large queries of the account.
func (s *Service) runQuery(ctx context.Context, account string, n int, read func() error) error {
	if n <= core.ReadSize {
		return read()
	}
	return s.runLargeQuery(ctx, account, queryRestFactor, read)
}

// runLargeQuery runs a large query. The next large query of the account waits restFactor times the duration of this query, at most maxQueryRest.
func (s *Service) runLargeQuery(ctx context.Context, account string, restFactor time.Duration, read func() error) error {
	unlock, err := s.largeQueries.Lock(ctx, account)
	if errors.Is(err, keyedmutex.ErrTooMany) {
		return ErrTooManyRequests
	}
	if err != nil {
		return err
	}
	if s.isLocal() {
		if err := s.processors.Acquire(ctx, 1); err != nil {
			unlock()
			return err
		}
		defer s.processors.Release(1)
	}
	begun := time.Now()
	defer func() {
		if took := time.Since(begun); took < minQueryTime {
			unlock()
		} else {
			time.AfterFunc(min(restFactor*took, maxQueryRest), unlock)
		}
	}()
	return read()
}

// isLocal reports whether the store reads from memory and local files, and not over a network.
func (s *Service) isLocal() bool {
	_, local := s.store.(core.HistoryIndex)
	return local
}
