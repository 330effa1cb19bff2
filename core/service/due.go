package service

import (
	"sync"

	"github.com/limitkeeper/limitkeeper/core"
)

// maxDue is the maximum number of due counters of an account. Beyond it, all counters of the account are due.
const maxDue = 10_000

// dueCounter is a counter that must be ranked again, because it changed without a decision.
type dueCounter struct {
	core.CounterID
	keys bool // the counters of all keys of the user are due, too
}

// dueCounters has the due counters of each account.
type dueCounters struct {
	mu sync.Mutex

	// byAccount maps a due counter to true while it waits, and to false while it is being ranked. The inner map is nil while all counters of the
	// account are due.
	byAccount map[string]map[dueCounter]bool
}

// add makes counters of an account due.
func (d *dueCounters) add(account string, list ...dueCounter) {
	if len(list) == 0 {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	has, known := d.byAccount[account]
	if !known {
		has = map[dueCounter]bool{}
	}
	for _, c := range list {
		if has != nil {
			has[c] = true
		}
	}
	d.put(account, has)
}

// addAll makes all counters of an account due.
func (d *dueCounters) addAll(account string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.put(account, nil)
}

// put stores the due counters of an account. nil, or more than maxDue, stand for all counters.
func (d *dueCounters) put(account string, has map[dueCounter]bool) {
	if len(has) > maxDue {
		has = nil
	}
	if d.byAccount == nil {
		d.byAccount = map[string]map[dueCounter]bool{}
	}
	d.byAccount[account] = has
}

// hasAll reports whether all counters of the account are due.
func (d *dueCounters) hasAll(account string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	has, known := d.byAccount[account]
	return known && has == nil
}

// forget removes all due counters of an account.
func (d *dueCounters) forget(account string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.byAccount, account)
}

// take returns at most limit waiting counters of an account. They stay due until the call of done. more reports that other counters are due, too. all
// reports that all counters of the account are due: take then returns none, and they stay due.
func (d *dueCounters) take(account string, limit int) (list []dueCounter, more, all bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	has, known := d.byAccount[account]
	if known && has == nil {
		return nil, false, true
	}
	for c, waits := range has {
		if len(list) == limit {
			break
		}
		if waits {
			list, has[c] = append(list, c), false
		}
	}
	return list, len(list) < len(has), false
}

// done ends the ranking of counters that take has returned. They are no longer due, except the counters that were added again since take.
func (d *dueCounters) done(account string, list []dueCounter) {
	d.mu.Lock()
	defer d.mu.Unlock()
	has := d.byAccount[account]
	for _, c := range list {
		if waits, due := has[c]; due && !waits {
			delete(has, c)
		}
	}
	if has != nil && len(has) == 0 {
		delete(d.byAccount, account)
	}
}
