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

// dueCounters are the due counters by account. The set of an account is nil while all its counters are due.
type dueCounters struct {
	mu        sync.Mutex
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

// take removes and returns at most so many due counters of an account. all reports that all counters of the account are due; take leaves them due.
func (d *dueCounters) take(account string, most int) (list []dueCounter, all bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	has, known := d.byAccount[account]
	if known && has == nil {
		return nil, true
	}
	for c := range has {
		if len(list) == most {
			return list, false
		}
		list = append(list, c)
		delete(has, c)
	}
	delete(d.byAccount, account)
	return list, false
}
