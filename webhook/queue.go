package webhook

import (
	"time"

	"github.com/limitkeeper/limitkeeper/core"
)

// window is how many waiting events of a webhook are read into memory at once, about 200 bytes each. When half of them have been delivered, the next ones
// are read.
const window = 1000

// queue is the beginning of the list of events that wait for a webhook.
type queue struct {
	queueID

	waiting []waiting // in the order of Seq, with the events whose attempts are running
	last    int64     // the Seq of the last event that was read
	total   int       // all events that wait, as of the last read
	more    bool      // events may wait behind last

	// heads has each subject whose first waiting event has failed. The value reports whether later events of the subject were left out of waiting. heads is
	// nil until thin runs.
	heads map[string]bool

	failed int       // failures in a row: attempts that have failed since the last success. Those that ran at once count as one
	pause  time.Time // no attempt before
}

// subjects are the subjects of the events of a webhook whose attempts are running, by the ids of the events.
type subjects map[string]string

// waiting is an event that waits for a webhook.
type waiting struct {
	id, subject string
	seq         int64
	next        time.Time // no attempt before
}

// add appends events that were read from the store behind last, with the number of all events that wait.
func (q *queue) add(list []*core.Event, total int) {
	for _, e := range list {
		w := waiting{id: e.ID, subject: e.Subject, seq: e.Seq}
		if d := e.PendingFor(q.webhook); d != nil {
			w.next = d.Next
		}
		q.append(w)
		q.last = e.Seq
	}
	q.total = total
}

// append appends an event. A thin queue leaves out an event if an earlier event of its subject has failed.
func (q *queue) append(w waiting) {
	if _, blocked := q.heads[w.subject]; blocked {
		q.heads[w.subject] = true
		return
	}
	if q.heads != nil && w.subject != "" && !w.next.IsZero() {
		q.heads[w.subject] = false
	}
	q.waiting = append(q.waiting, w)
}

// thin leaves out each event behind a failed event of its subject, so that a subject whose deliveries fail does not fill the window. The events are read
// again when the failed event is removed.
func (q *queue) thin() {
	all := q.waiting
	q.waiting, q.heads = nil, map[string]bool{}
	for _, w := range all {
		q.append(w)
	}
}

// isStuck reports whether no event in memory is due at the time now, while further events may wait in the store. No attempt of the webhook is running.
func (q *queue) isStuck(now time.Time) bool {
	if !q.more || q.pause.After(now) {
		return false
	}
	_, _, due := q.due(now, nil)
	return !due
}

// due returns the first event that may be sent at the time now: no attempt of it or of another event of its subject is running, and no earlier event of its
// subject waits. Without such an event, ok is false and next is the time of the next attempt, the zero time if none waits for its time.
func (q *queue) due(now time.Time, running subjects) (event waiting, next time.Time, ok bool) {
	if q.pause.After(now) {
		return event, q.pause, false
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
			if q.heads[w.subject] {
				q.waiting, q.heads, q.last, q.more = nil, nil, 0, true
			}
			delete(q.heads, w.subject)
			return
		}
	}
}

// delay moves the next attempt of an event.
func (q *queue) delay(id string, next time.Time) {
	for i := range q.waiting {
		if q.waiting[i].id == id {
			q.waiting[i].next = next
		}
	}
}

// The pause of a webhook after a failure doubles with each failure in a row. It bounds the requests to a receiver that is down, however many events wait.
const (
	minPause = time.Second
	maxPause = 5 * time.Minute
)

// noteFailure starts the pause of the webhook. before is the number of failures in a row before the failed attempt began.
func (q *queue) noteFailure(now time.Time, before int) {
	q.failed = max(q.failed, before+1)
	q.pause = now.Add(min(minPause<<min(q.failed-1, 20), maxPause))
}

// After recoveredFrom failures in a row, a success shows that the receiver is back. The waiting events are then tried within recoveryDelay.
const (
	recoveredFrom = 5
	recoveryDelay = 10 * time.Second
)

// noteSuccess ends the pause of the webhook.
func (q *queue) noteSuccess(now time.Time) {
	if q.failed >= recoveredFrom {
		for i := range q.waiting {
			if q.waiting[i].next.After(now.Add(recoveryDelay)) {
				q.waiting[i].next = now.Add(recoveryDelay)
			}
		}
	}
	q.failed, q.pause = 0, time.Time{}
}
