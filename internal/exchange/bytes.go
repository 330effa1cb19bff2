package exchange

import "sync"

// Bytes bounds the bytes of unfinished bodies or answers, of all and of each owner. It is safe for concurrent use.
type Bytes struct {
	All, Each int64 // set before the first use
	Least     int64 // what an unfinished body counts from its beginning: it bounds how many there are

	mu    sync.Mutex
	total int64
	of    map[string]int64

	unread  []*Body // that are being read
	checked bool    // check will run
}

// take adds n bytes of an owner. It adds nothing and returns false if that would exceed a bound; with first, an owner without any bytes has
// no bound.
func (b *Bytes) take(owner string, n int64, first bool) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.takeLocked(owner, n, first)
}

func (b *Bytes) takeLocked(owner string, n int64, first bool) bool {
	if (b.total+n > b.All || b.of[owner]+n > b.Each) && !(first && b.of[owner] == 0) {
		return false
	}
	b.addLocked(owner, n)
	return true
}

// add adds n bytes of an owner, also beyond the bounds. It removes bytes if n is negative.
func (b *Bytes) add(owner string, n int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.addLocked(owner, n)
}

func (b *Bytes) addLocked(owner string, n int64) {
	if n == 0 {
		return
	}
	if b.of == nil {
		b.of = map[string]int64{}
	}
	b.total += n
	if b.of[owner] += n; b.of[owner] == 0 {
		delete(b.of, owner)
	}
}

// Hold counts n bytes for owner until release. Beyond a bound of b the error is [ErrBusy].
func (b *Bytes) Hold(owner string, n int64) (release func(), err error) {
	if !b.take(owner, n, false) {
		return nil, ErrBusy
	}
	return func() { b.add(owner, -n) }, nil
}
