package service

import (
	"sync"

	"github.com/limitkeeper/limitkeeper/core"
)

// maxDue is the largest number of due counters of an account. Beyond it, the whole account is ranked again.
const maxDue = 10_000

// dueCounter is a counter that changed without a decision.
type dueCounter struct {
	core.CounterID
	keys bool // the counters of all keys of the user, too
}

// dueCounters are the due counters by account. An account with more than maxDue has nil.
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

func (d *dueCounters) put(account string, has map[dueCounter]bool) {
	if len(has) > maxDue {
		has = nil
	}
	if d.byAccount == nil {
		d.byAccount = map[string]map[dueCounter]bool{}
	}
	d.byAccount[account] = has
}

// hasAll reports whether the whole account is due.
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

// take returns the due counters of an account, and removes them. all reports that the whole account is due, and stays so.
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
