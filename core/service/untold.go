package service

import (
	"sync"

	"github.com/limitkeeper/limitkeeper/core"
)

// maxUntold is the maximum number of readings of an account that wait for WriteEvents, and of its events. A waiting reading takes about 400 bytes.
const maxUntold = 10_000

// untold has what has happened in each account and is not in the store as an event yet. It is in memory only, see [Service.WriteEvents].
type untold struct {
	mu        sync.Mutex
	byAccount map[string]*untoldOf
	dropped   uint64 // readings and events that found no room
}

// untoldOf is the part of one account.
type untoldOf struct {
	readings map[core.ReadingID]core.LimitReading // the reading with the highest usage of each limit
	events   []*core.Event
	missed   bool // a reading found no room: RankAccounts reads all counters again
}

// of returns the part of an account. The caller holds mu.
func (u *untold) of(account string) *untoldOf {
	o := u.byAccount[account]
	if o == nil {
		if u.byAccount == nil {
			u.byAccount = map[string]*untoldOf{}
		}
		o = &untoldOf{readings: map[core.ReadingID]core.LimitReading{}}
		u.byAccount[account] = o
	}
	return o
}

// addReadings adds readings of limits of an account.
func (u *untold) addReadings(account string, list []core.LimitReading) {
	if len(list) == 0 {
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	o := u.of(account)
	for _, r := range list {
		had, waits := o.readings[r.ID()]
		switch {
		case !waits && len(o.readings) >= maxUntold:
			o.missed = true
			u.dropped++
		case !waits || had.Used < r.Used:
			o.readings[r.ID()] = r
		}
	}
}

// addEvents adds events of an account. Events beyond maxUntold are dropped.
func (u *untold) addEvents(account string, list ...*core.Event) {
	if len(list) == 0 {
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	o := u.of(account)
	fit := min(len(list), max(0, maxUntold-len(o.events)))
	o.events = append(o.events, list[:fit]...)
	u.dropped += uint64(len(list) - fit)
}

// accounts returns the accounts with readings or events.
func (u *untold) accounts() (list []string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for account, o := range u.byAccount {
		if len(o.readings)+len(o.events) > 0 {
			list = append(list, account)
		}
	}
	return list
}

// take removes and returns at most limit readings and limit events of an account.
func (u *untold) take(account string, limit int) (readings []core.LimitReading, events []*core.Event) {
	u.mu.Lock()
	defer u.mu.Unlock()
	o := u.byAccount[account]
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
		delete(u.byAccount, account)
	}
	return readings, events
}

// isHalfFull reports whether half of the readings or events of an account that find room wait.
func (u *untold) isHalfFull(account string) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	o := u.byAccount[account]
	return o != nil && max(len(o.readings), len(o.events)) >= maxUntold/2
}

// hasMissed reports whether a reading of the account has found no room since the last call of forgetMissed.
func (u *untold) hasMissed(account string) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	o := u.byAccount[account]
	return o != nil && o.missed
}

func (u *untold) forgetMissed(account string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if o := u.byAccount[account]; o != nil {
		o.missed = false
	}
}

func (u *untold) droppedSoFar() uint64 {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.dropped
}
