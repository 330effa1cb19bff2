package service

import (
	"sync"

	"github.com/limitkeeper/limitkeeper/core"
)

// maxQueued bounds the readings of an account that wait for WriteEvents, and likewise its events. A waiting reading takes about 400 bytes.
const maxQueued = 10_000

// eventQueue has the readings of limits and the events that [Service.WriteEvents] has not stored yet, in memory.
type eventQueue struct {
	mu        sync.Mutex
	byAccount map[string]*queuedEvents
	dropped   uint64 // readings and events that found no room
}

// queuedEvents is the part of one account.
type queuedEvents struct {
	readings map[core.ReadingID]core.LimitReading // the reading with the highest usage of each limit
	events   []*core.Event
	missed   bool // a reading found no room: RankAccounts reads all counters again
}

// of returns the part of an account. The caller holds mu.
func (q *eventQueue) of(account string) *queuedEvents {
	o := q.byAccount[account]
	if o == nil {
		if q.byAccount == nil {
			q.byAccount = map[string]*queuedEvents{}
		}
		o = &queuedEvents{readings: map[core.ReadingID]core.LimitReading{}}
		q.byAccount[account] = o
	}
	return o
}

// addReadings adds readings of limits of an account.
func (q *eventQueue) addReadings(account string, list []core.LimitReading) {
	if len(list) == 0 {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	o := q.of(account)
	for _, r := range list {
		had, waits := o.readings[r.ID()]
		switch {
		case !waits && len(o.readings) >= maxQueued:
			o.missed = true
			q.dropped++
		case !waits || had.Used < r.Used:
			o.readings[r.ID()] = r
		}
	}
}

// addEvents adds events of an account. Events beyond maxQueued are dropped.
func (q *eventQueue) addEvents(account string, list ...*core.Event) {
	if len(list) == 0 {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	o := q.of(account)
	fit := min(len(list), max(0, maxQueued-len(o.events)))
	o.events = append(o.events, list[:fit]...)
	q.dropped += uint64(len(list) - fit)
}

// accounts returns the accounts with readings or events.
func (q *eventQueue) accounts() (list []string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for account, o := range q.byAccount {
		if len(o.readings)+len(o.events) > 0 {
			list = append(list, account)
		}
	}
	return list
}

// take removes and returns at most limit readings and limit events of an account.
func (q *eventQueue) take(account string, limit int) (readings []core.LimitReading, events []*core.Event) {
	q.mu.Lock()
	defer q.mu.Unlock()
	o := q.byAccount[account]
	if o == nil {
		return nil, nil
	}
	for id, r := range o.readings {
		if len(readings) == limit {
			break
		}
		readings = append(readings, r)
		delete(o.readings, id)
	}
	n := min(limit, len(o.events))
	events, o.events = o.events[:n:n], o.events[n:]
	if len(o.readings)+len(o.events) == 0 && !o.missed {
		delete(q.byAccount, account)
	}
	return readings, events
}

// isHalfFull reports whether maxQueued/2 readings or events of an account wait.
func (q *eventQueue) isHalfFull(account string) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	o := q.byAccount[account]
	return o != nil && max(len(o.readings), len(o.events)) >= maxQueued/2
}

// hasMissed reports whether a reading of the account has found no room since the last call of forgetMissed.
func (q *eventQueue) hasMissed(account string) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	o := q.byAccount[account]
	return o != nil && o.missed
}

func (q *eventQueue) forgetMissed(account string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if o := q.byAccount[account]; o != nil {
		o.missed = false
	}
}

func (q *eventQueue) droppedSoFar() uint64 {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.dropped
}
