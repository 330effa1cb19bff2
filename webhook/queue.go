package webhook

import (
	"time"

	"github.com/limitkeeper/limitkeeper/core"
)

// maxQueued is the number of waiting events of a webhook in memory, about 200 bytes each. When fewer than half of them are left, the next ones are read.
const maxQueued = 1000

// queue is the beginning of the list of events that wait for a webhook.
type queue struct {
	queueID

	waiting []waitingEvent // in the order of Seq, with the events whose attempts are running
	last    int64          // the Seq of the last event that was read
	total   int            // the number of waiting events in memory and in the store
	more    bool           // the store may have waiting events after last

	complete bool // the queue has read all waiting events since readAgain, and later only new ones
	recheck  bool // see check

	// failedSubjects has each subject whose first waiting event has failed. The value reports whether later events of the subject were skipped: they are
	// only in the store. failedSubjects is nil until skipBlocked runs.
	failedSubjects map[string]bool

	failed     int       // failures in a row since the last success. Attempts that ran at once count as one
	pauseUntil time.Time // no attempt starts before
}

// runningEvents are the events of a webhook whose attempts are running: their subjects by their ids.
type runningEvents map[string]string

// waitingEvent is an event that waits for a webhook.
type waitingEvent struct {
	id, subject string
	seq         int64
	next        time.Time // no attempt starts before; the zero time before the first attempt
}

// add appends the events that the store has after last. total is the number of all events that wait.
func (q *queue) add(list []*core.Event, total int) {
	for _, e := range list {
		w := waitingEvent{id: e.ID, subject: e.Subject, seq: e.Seq}
		if d := e.PendingFor(q.webhook); d != nil {
			w.next = d.Next
		}
		q.append(w)
		q.last = e.Seq
	}
	q.total = total
}

// append appends an event. After skipBlocked, it skips an event if an earlier event of its subject has failed.
func (q *queue) append(w waitingEvent) {
	if _, blocked := q.failedSubjects[w.subject]; blocked {
		q.failedSubjects[w.subject] = true
		return
	}
	if q.failedSubjects != nil && w.subject != "" && !w.next.IsZero() {
		q.failedSubjects[w.subject] = false
	}
	q.waiting = append(q.waiting, w)
}

// skipBlocked removes each event that waits for a failed event of its subject, so that failing subjects do not fill the queue. The removed events are read
// again after the failed event is removed.
func (q *queue) skipBlocked() {
	before := q.waiting
	q.waiting, q.failedSubjects = nil, map[string]bool{}
	for _, w := range before {
		q.append(w)
	}
}

// isStuck reports whether no event in memory is due at the time now, while the store may have further ones. Call it while no attempt of the webhook runs.
func (q *queue) isStuck(now time.Time) bool {
	if !q.more || q.pauseUntil.After(now) {
		return false
	}
	_, _, due := q.due(now, nil)
	return !due
}

// due returns the first event that may be sent at the time now: no attempt of this event or of another event of its subject is running, and no earlier
// event of its subject waits. Without such an event, ok is false, and next is the time at which an event becomes due. next is zero if events become due
// only after a running attempt ends.
func (q *queue) due(now time.Time, running runningEvents) (event waitingEvent, next time.Time, ok bool) {
	if q.pauseUntil.After(now) {
		return event, q.pauseUntil, false
	}
	blocked := map[string]bool{}
	for _, subject := range running {
		blocked[subject] = true
	}
	for _, w := range q.waiting {
		if _, runs := running[w.id]; runs || w.subject != "" && blocked[w.subject] {
			continue
		}
		if !w.next.After(now) {
			return w, now, true
		}
		if next.IsZero() || w.next.Before(next) {
			next = w.next
		}
		blocked[w.subject] = true
	}
	return event, next, false
}

// remove removes an event whose delivery has ended.
func (q *queue) remove(id string) {
	for i, w := range q.waiting {
		if w.id == id {
			q.waiting = append(q.waiting[:i], q.waiting[i+1:]...)
			q.total--
			if q.failedSubjects[w.subject] {
				q.readAgain()
			}
			delete(q.failedSubjects, w.subject)
			return
		}
	}
}

// readAgain makes the queue read all waiting events again.
func (q *queue) readAgain() {
	q.waiting, q.failedSubjects, q.last, q.more, q.complete = nil, nil, 0, true, false
}

// check makes the queue read all waiting events again if the store has more of them than the queue has read and skipped, although the queue had read the
// last one before: a rewind of the usage feed makes an earlier event wait again. Call it after each read. running reports whether an attempt of the webhook runs:
// then waiting may have an event whose delivery has ended, and the check is repeated later.
func (q *queue) check(running bool) {
	q.recheck = running
	before := q.complete
	q.complete = before || !q.more
	if before && !q.more && q.total > len(q.waiting) && !q.hasSkipped() {
		q.readAgain()
	}
}

// hasSkipped reports whether events were skipped. They are read again after the failed event of their subject is removed.
func (q *queue) hasSkipped() bool {
	for _, skipped := range q.failedSubjects {
		if skipped {
			return true
		}
	}
	return false
}

// delay moves the next attempt of an event.
func (q *queue) delay(id string, next time.Time) {
	for i := range q.waiting {
		if q.waiting[i].id == id {
			q.waiting[i].next = next
		}
	}
}

// After a failure, all events of a webhook pause. The pause doubles with each failure in a row. So a receiver that is down gets few requests, however
// many events wait.
const (
	minPause = time.Second
	maxPause = 5 * time.Minute
)

// recordFailure starts the pause of the webhook. before is the number of failures in a row when the failed attempt began.
func (q *queue) recordFailure(now time.Time, before int) {
	q.failed = max(q.failed, before+1)
	q.pauseUntil = now.Add(min(minPause<<min(q.failed-1, 20), maxPause))
}

// After outageFailures failures in a row, a success means that the receiver has recovered. All waiting events are then due within recoveryDelay.
const (
	outageFailures = 5
	recoveryDelay  = 10 * time.Second
)

// recordSuccess ends the pause of the webhook. After an outage, it brings the next attempts forward.
func (q *queue) recordSuccess(now time.Time) {
	if q.failed >= outageFailures {
		for i := range q.waiting {
			if q.waiting[i].next.After(now.Add(recoveryDelay)) {
				q.waiting[i].next = now.Add(recoveryDelay)
			}
		}
	}
	q.failed, q.pauseUntil = 0, time.Time{}
}
