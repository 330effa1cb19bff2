package migrate

import (
	"sync"
	"time"
)

// Count says how many of Total are done.
type Count struct {
	Done  int64 `json:"done"`
	Total int64 `json:"total"`
}

// Progress is the progress of a [Run].
type Progress struct {
	Accounts  Count
	OwnerKeys Count
	Plans     Count
	Users     Count
	Keys      Count
	Histories Count // histories of users and keys
	Entries   Count // entries of the histories; the total grows with each history
	Counters  Count
	Verified  Count // users and keys in the final comparison
}

// tellEvery is the time between two calls of [Options.Progress].
const tellEvery = time.Second

// progress counts, and calls [Options.Progress].
type progress struct {
	mu   sync.Mutex // guards the rest
	now  Progress
	last time.Time
	o    Options
}

func newProgress(o Options) *progress { return &progress{o: o, last: o.now()} }

// plan adds the resources of an account to the totals.
func (p *progress) plan(owners, plans, users, keys int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := &p.now
	n.Accounts.Total++
	n.OwnerKeys.Total += int64(owners)
	n.Plans.Total += int64(plans)
	n.Users.Total += int64(users)
	n.Keys.Total += int64(keys)
	n.Histories.Total += int64(users + keys)
	n.Counters.Total += int64(users + keys)
	n.Verified.Total += int64(users + keys)
}

// done adds n to the Done of a Count.
func (p *progress) done(kind *Count, n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	kind.Done += int64(n)
	p.tellLocked(false)
}

// entries adds to both numbers of Entries.
func (p *progress) entries(done, total int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.now.Entries.Done += done
	p.now.Entries.Total += total
	p.tellLocked(false)
}

// tell calls Options.Progress now.
func (p *progress) tell() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.tellLocked(true)
}

func (p *progress) tellLocked(always bool) {
	if p.o.Progress == nil {
		return
	}
	if now := p.o.now(); always || now.Sub(p.last) >= tellEvery {
		p.last = now
		p.o.Progress(p.now)
	}
}
