package signin

import (
	"cmp"
	"context"
	"crypto/subtle"
	"slices"
	"sync"
	"time"

	"golang.org/x/crypto/argon2"
	"golang.org/x/sync/semaphore"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/secrets"
)

// The bounds of the queue for the hasher.
const (
	restFactor = 9                // see hasher
	maxRest    = time.Second      // longest rest after a stranger
	maxWaiting = 64               // queue length, in passwords
	maxWait    = 10 * time.Second // longest time a password waits
)

// ErrBusy means that too many passwords wait to be checked. Nothing was tried.
var ErrBusy = &core.Error{Code: core.CodeUnavailable, Message: "Too many passwords are being checked: try again in a minute, or sign in by a link"}

// knownRank is added to the rank of a known browser or a session. The first attempt of an
// account's known browsers or sessions goes ahead of all strangers. After a wrong one in the
// last 15 minutes it queues like an unknown client.
const knownRank = -1

// hasher hashes one password at a time, which bounds its memory. After the password of a
// stranger (a rank of 0 or more) the next stranger waits restFactor times as long as the hash
// took, at most maxRest: strangers take a tenth of one processor, however many try to sign in.
//
// Waiting passwords are served by rank, equal ranks in order of arrival. After a known browser
// (a rank below 0) a stranger is served if its time has come, so that accounts which sign in
// without a pause cannot keep all strangers waiting. When more than maxWaiting wait, the waiter
// with the highest rank is refused.
type hasher struct {
	processors *semaphore.Weighted                                                                   // see [New]
	idKey      func(password, salt []byte, time, memory uint32, threads uint8, keyLen uint32) []byte // argon2.IDKey

	mu      sync.Mutex
	busy    bool
	known   bool        // the password that is hashed, or was hashed last, has a rank below 0
	began   time.Time   // when the hasher and a processor were taken
	rest    time.Time   // strangers are not served before
	waiting []*waiter   // by rank
	wake    *time.Timer // serves the next stranger at rest; nil when none waits for that
}

// waiter is a password that waits for the hasher.
type waiter struct {
	rank int
	// ready receives nil when the waiter may hash, or the reason it is refused. Capacity 1.
	ready chan error
}

func newHasher(processors *semaphore.Weighted) *hasher {
	return &hasher{processors: processors, idKey: argon2.IDKey}
}

// enter waits for the hasher, at most maxWait. If enter returns nil, the caller must call leave.
func (h *hasher) enter(ctx context.Context, rank int) error {
	w := &waiter{rank, make(chan error, 1)}
	h.mu.Lock()
	i, _ := slices.BinarySearchFunc(h.waiting, rank+1, func(w *waiter, rank int) int { return cmp.Compare(w.rank, rank) })
	h.waiting = slices.Insert(h.waiting, i, w)
	h.serveLocked()
	if last := len(h.waiting) - 1; last >= maxWaiting {
		h.waiting[last].ready <- ErrBusy
		h.waiting = slices.Delete(h.waiting, last, last+1)
	}
	h.mu.Unlock()
	timer := time.NewTimer(maxWait)
	defer timer.Stop()
	select {
	case err := <-w.ready:
		if err == nil {
			err = h.takeProcessor(ctx)
		}
		return err
	case <-timer.C:
		return h.giveUp(w, ErrBusy)
	case <-ctx.Done():
		return h.giveUp(w, ctx.Err())
	}
}

// giveUp ends the wait of w with err. If the hasher became free for w meanwhile, the next
// waiter gets it.
func (h *hasher) giveUp(w *waiter, err error) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if i := slices.Index(h.waiting, w); i >= 0 {
		h.waiting = slices.Delete(h.waiting, i, i+1)
	} else if <-w.ready == nil {
		h.busy = false
		h.serveLocked()
	}
	return err
}

// takeProcessor waits for a processor for the present password, at most maxWait.
func (h *hasher) takeProcessor(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, maxWait, ErrBusy)
	defer cancel()
	err := h.processors.Acquire(ctx, 1)
	if err != nil {
		err = context.Cause(ctx)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.began = time.Now(); err != nil {
		h.busy = false
		h.serveLocked()
	}
	return err
}

func (h *hasher) leave() {
	h.processors.Release(1)
	h.mu.Lock()
	defer h.mu.Unlock()
	if now := time.Now(); !h.known {
		h.rest = now.Add(min(restFactor*now.Sub(h.began), maxRest))
	}
	h.busy = false
	h.serveLocked()
}

// serveLocked lets the next waiter hash, if the hasher is free and its time has come.
func (h *hasher) serveLocked() {
	if h.busy || len(h.waiting) == 0 {
		return
	}
	stranger := slices.IndexFunc(h.waiting, func(w *waiter) bool { return w.rank >= 0 })
	wait := time.Until(h.rest)
	next := 0
	switch {
	case stranger > 0 && h.known && wait <= 0:
		next = stranger
	case stranger == 0 && wait > 0:
		if h.wake == nil {
			h.wake = time.AfterFunc(wait, h.wakeUp)
		}
		return
	}
	w := h.waiting[next]
	h.waiting = slices.Delete(h.waiting, next, next+1)
	h.busy, h.known = true, w.rank < 0
	w.ready <- nil
}

func (h *hasher) wakeUp() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.wake = nil
	h.serveLocked()
}

// hash returns the hash of a password in the PHC string format, with a new salt.
func (h *hasher) hash(ctx context.Context, rank int, password string) (string, error) {
	if err := h.enter(ctx, rank); err != nil {
		return "", err
	}
	defer h.leave()
	p := secrets.NewPHC()
	p.Sum = h.sum(p, password)
	return p.String(), nil
}

func (h *hasher) sum(p secrets.PHC, password string) []byte {
	return h.idKey([]byte(password), p.Salt, p.Time, p.Memory, p.Lanes, uint32(len(p.Sum)))
}

// matches reports whether a hash is that of a password. The hash "" matches no password, after the
// same work.
func (h *hasher) matches(ctx context.Context, rank int, hash, password string) (bool, error) {
	if err := h.enter(ctx, rank); err != nil {
		return false, err
	}
	defer h.leave()
	p := secrets.NewPHC()
	if hash != "" {
		var err error
		if p, err = secrets.ParsePHC(hash); err != nil {
			return false, err
		}
	}
	if len(password) > MaxPasswordLength {
		password = password[:MaxPasswordLength+1]
	}
	return subtle.ConstantTimeCompare(h.sum(p, password), p.Sum) == 1 && hash != "", nil
}
