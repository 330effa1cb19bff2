package service

import (
	"cmp"
	"container/heap"
	"slices"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
)

// maxOpenHistories is the number of histories of which entries stay in memory. A search with twice as many open histories parks half of them.
const maxOpenHistories = maxBuffered / 2

// parkedSource is the history of a user of which no entry is in memory. It takes 32 bytes: an account may have a million users.
type parkedSource struct {
	user     int64
	next     int64     // the time LatestSoFar of the next entry in Unix nanoseconds, or a later time if nothing was read
	offset   int32     // see historySource
	total    int32     // see historySource
	returned *returned // only of a store with a cap
}

// before reports whether the next entry may come before the next entry of an open source.
func (p *parkedSource) before(src *historySource) bool {
	at := src.batch[0].LatestSoFar().UnixNano()
	return p.next > at || p.next == at && p.user < src.of.UserID
}

// park closes the open histories with the oldest next entries, if too many histories are open.
func (m *historyMerge) park() {
	if len(m.sources) <= 2*maxOpenHistories {
		return
	}
	slices.SortFunc(m.sources, compareSources) // a sorted slice is a heap
	for _, src := range m.sources[maxOpenHistories:] {
		p := parkedSource{user: src.of.UserID, next: src.batch[0].LatestSoFar().UnixNano(),
			offset: int32(src.offset - len(src.batch)), total: int32(src.total)}
		if m.capped {
			p.returned = new(src.returned)
		}
		heap.Push(&m.parked, p)
	}
	clear(m.sources[maxOpenHistories:])
	m.sources = m.sources[:maxOpenHistories]
}

// unpark returns the source that add opens.
func (m *historyMerge) unpark(p parkedSource) *historySource {
	src := &historySource{of: core.CounterID{Account: m.account, UserID: p.user}, newest: time.Unix(0, p.next), offset: int(p.offset), total: int(p.total)}
	if p.returned != nil {
		src.returned = *p.returned
	}
	return src
}

// parkedSources is a heap in the order of the next entries, see historySources.
type parkedSources []parkedSource

func (h parkedSources) Len() int { return len(h) }

func (h parkedSources) Less(i, j int) bool {
	return cmp.Or(cmp.Compare(h[j].next, h[i].next), cmp.Compare(h[i].user, h[j].user)) < 0
}

func (h parkedSources) Swap(i, j int) { h[i], h[j] = h[j], h[i] }

func (h *parkedSources) Push(x any) { *h = append(*h, x.(parkedSource)) }

func (h *parkedSources) Pop() any {
	last := len(*h) - 1
	p := (*h)[last]
	*h = (*h)[:last]
	return p
}
