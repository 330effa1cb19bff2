package exchange

import "sync"

// Bytes bounds the bytes of unfinished bodies or answers, of all and of each owner. It is safe for concurrent use.
type Bytes struct {
	All, Each int64 // set before the first use
	Least     int64 // what an unfinished body counts from its beginning: it bounds how many there are

	mu    sync.Mutex
	total int64
	of    map[string]int64
}

// take adds n bytes of an owner. It adds nothing and returns false if that would exceed a bound; with first, an owner without any bytes has
// no bound.
func (b *Bytes) take(owner string, n int64, first bool) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if (b.total+n > b.All || b.of[owner]+n > b.Each) && !(first && b.of[owner] == 0) {
		return false
	}
	b.addLocked(owner, n)
	return true
}

func (b *Bytes) addLocked(owner string, n int64) {
	if b.of == nil {
		b.of = map[string]int64{}
	}
	b.total += n
	b.of[owner] += n
}

// add adds n bytes of an owner, also beyond the bounds.
func (b *Bytes) add(owner string, n int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.addLocked(owner, n)
}

// give removes n bytes of an owner.
func (b *Bytes) give(owner string, n int64) {
	if n == 0 {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.total -= n
	if b.of[owner] -= n; b.of[owner] == 0 {
		delete(b.of, owner)
	}
}

// Hold counts n bytes for owner until release. Beyond a bound of b the error is [ErrBusy].
func (b *Bytes) Hold(owner string, n int64) (release func(), err error) {
	if !b.take(owner, n, false) {
		return nil, ErrBusy
	}
	return func() { b.give(owner, n) }, nil
}
