package migrate

import (
	"sync"
	"time"
)

// Count is how much of something is done.
type Count struct {
	Done  int64 `json:"done"`
	Total int64 `json:"total"`
}

// Progress is how far a [Run] is.
type Progress struct {
	Accounts  Count
	OwnerKeys Count
	Plans     Count
	Users     Count
	Keys      Count
	Histories Count // users whose histories, and those of whose keys, are taken over
	Entries   Count // in these; the total grows while histories are read
	Counters  Count
	Verified  Count // users and keys that were compared at the end
}

// tellEvery is how often progress is told.
const tellEvery = time.Second

// progress keeps count and tells from time to time.
type progress struct {
	mu   sync.Mutex // guards what follows
	now  Progress
	last time.Time
	o    Options
}

func newProgress(o Options) *progress { return &progress{o: o, last: o.now()} }

// plan adds to what there is to do.
func (p *progress) plan(owners, plans, users, keys int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := &p.now
	n.Accounts.Total++
	n.OwnerKeys.Total += int64(owners)
	n.Plans.Total += int64(plans)
	n.Users.Total += int64(users)
	n.Keys.Total += int64(keys)
	n.Histories.Total += int64(users)
	n.Counters.Total += int64(users + keys)
	n.Verified.Total += int64(users + keys)
}

// done adds to what is done of one kind.
func (p *progress) done(kind *Count, n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	kind.Done += int64(n)
	p.tellLocked(false)
}

// entries adds to the entries that are done, and to all that there are.
func (p *progress) entries(done, total int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.now.Entries.Done += done
	p.now.Entries.Total += total
	p.tellLocked(false)
}

// tell tells how far it is, whenever it was told the last time.
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
