package core

import (
	"cmp"
	"container/list"
	"context"
	"crypto/rand"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/crypto/argon2"
	"golang.org/x/sync/semaphore"
)

// A password is hashed by argon2id with 19 MiB of memory and two passes on one lane, a choice of
// the OWASP Password Storage Cheat Sheet. The second recommended choice of RFC 9106 section 4, 64
// MiB and three passes, takes five times as long: 160 ms of one processor for each guess.
const (
	argonTime   = 2
	argonMemory = 19 << 10 // KiB
	argonLanes  = 1
	argonSalt   = 16 // bytes
	argonSum    = 32 // bytes

	// The largest parameters of a stored hash: the second recommended choice of RFC 9106 section 4. A hash of another
	// installation may have them. A larger cost would let the author of an archive spend the memory and the CPU of all accounts.
	maxArgonTime   = 3
	maxArgonMemory = 64 << 10 // KiB
	maxArgonLanes  = 4
	maxArgonSalt   = 64 // bytes

	restFactor = 9                // see hasher
	maxRest    = time.Second      // longest rest after a stranger
	maxWaiting = 64               // queue length, in passwords
	maxWait    = 10 * time.Second // longest time a password waits
)

// errPasswordHash means that a stored hash of a password cannot be read, or costs too much.
var errPasswordHash = errors.New("the stored hash of a password is damaged, or costs more than this program spends")

// ErrBusy means that too many passwords wait to be checked. Nothing was tried.
var ErrBusy = &Error{Code: CodeUnavailable, Message: "Too many passwords are being checked: try again in a minute, or sign in by a link"}

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
	processors *semaphore.Weighted                                                                   // see newProcessors
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

// hash returns the hash of a password in the PHC string format, with a new salt:
//
//	$argon2id$v=19$m=19456,t=2,p=1$<salt>$<sum>
func (h *hasher) hash(ctx context.Context, rank int, password string) (string, error) {
	if err := h.enter(ctx, rank); err != nil {
		return "", err
	}
	defer h.leave()
	salt := make([]byte, argonSalt)
	_, _ = rand.Read(salt) // crypto/rand.Read never fails
	sum := h.idKey([]byte(password), salt, argonTime, argonMemory, argonLanes, argonSum)
	b64 := base64.RawStdEncoding.EncodeToString
	return fmt.Sprintf("$argon2id$v=%d$m=%d,t=%d,p=%d$%s$%s", argon2.Version, argonMemory, argonTime, argonLanes, b64(salt), b64(sum)), nil
}

// matches reports whether a hash is that of a password. The hash "" matches no password, after the
// same work.
func (h *hasher) matches(ctx context.Context, rank int, hash, password string) (bool, error) {
	if err := h.enter(ctx, rank); err != nil {
		return false, err
	}
	defer h.leave()
	p := phc{time: argonTime, memory: argonMemory, lanes: argonLanes, salt: make([]byte, argonSalt), sum: make([]byte, argonSum)}
	if hash != "" {
		var err error
		if p, err = parsePHC(hash); err != nil {
			return false, err
		}
	}
	if len(password) > MaxPasswordLength {
		password = password[:MaxPasswordLength+1]
	}
	sum := h.idKey([]byte(password), p.salt, p.time, p.memory, p.lanes, uint32(len(p.sum)))
	return subtle.ConstantTimeCompare(sum, p.sum) == 1 && hash != "", nil
}

// phc holds the parts of a hash.
type phc struct {
	time, memory uint32
	lanes        uint8
	salt, sum    []byte
}

// parsePHC parses a hash. It refuses parameters above maxArgonTime, maxArgonMemory and maxArgonLanes.
func parsePHC(hash string) (p phc, err error) {
	f := strings.Split(hash, "$")
	if len(f) != 6 || f[0] != "" || f[1] != "argon2id" || f[2] != fmt.Sprintf("v=%d", argon2.Version) {
		return phc{}, errPasswordHash
	}
	if _, err := fmt.Sscanf(f[3], "m=%d,t=%d,p=%d", &p.memory, &p.time, &p.lanes); err != nil {
		return phc{}, errPasswordHash
	}
	if f[3] != fmt.Sprintf("m=%d,t=%d,p=%d", p.memory, p.time, p.lanes) || p.memory > maxArgonMemory || p.time > maxArgonTime || p.lanes > maxArgonLanes {
		return phc{}, errPasswordHash
	}
	salt, err1 := base64.RawStdEncoding.DecodeString(f[4])
	sum, err2 := base64.RawStdEncoding.DecodeString(f[5])
	if err1 != nil || err2 != nil || len(sum) != argonSum || len(salt) > maxArgonSalt || p.time == 0 || p.lanes == 0 {
		return phc{}, errPasswordHash
	}
	p.salt, p.sum = salt, sum
	return p, nil
}

// The bounds of guessing a password. All count attempts within [WrongPasswordsIn].
const (
	// WrongPasswords bounds a name, an address (IPv4, or IPv6 /64), and a known browser.
	WrongPasswords = 10
	// WrongPasswordsNetwork bounds an IPv4 /24 or IPv6 /48. Several people share a
	// network, so it has more than an address. 50 hashes keep the hasher busy for about
	// 10 s, a hundredth of the window.
	WrongPasswordsNetwork = 50
	// WrongPasswordsIn is how long a wrong password counts.
	WrongPasswordsIn = 15 * time.Minute

	// maxAttempts bounds the memory of all attempts: about 700 bytes each, 12 MB. The hasher
	// checks about 4,500 passwords in 15 minutes. When the list is full, the oldest attempt
	// is dropped.
	maxAttempts = 16384
)

// attempts holds the wrong passwords of the last [WrongPasswordsIn]. A password that is
// being tried counts as wrong until it is known to be right, so that trying many at the
// same time gains nothing.
type attempts struct {
	mu     sync.Mutex
	list   list.List // of *attempt, oldest first
	counts map[Digest]int
}

// attempt is one password that is tried. It counts once for each of its subjects.
type attempt struct {
	at       time.Time
	rank     int // place in the queue for the hasher: lower is earlier
	subjects []subject
	element  *list.Element // nil once forgotten
}

// subject is a name, a browser, an address or a network that attempts are counted for.
// Digests keep every subject equally short.
type subject struct {
	id   Digest
	most int // attempts within WrongPasswordsIn; 0 for no bound
}

func newAttempts() *attempts { return &attempts{counts: map[Digest]int{}} }

func nameSubject(name string) subject { return subject{DigestOf("name " + name), WrongPasswords} }

// networks returns the networks of an address: that of one client, the block of one customer of a provider, and one of unrelated clients. They
// are a /32, /24 and /16, or an IPv6 /64, /48 and /32. It returns nil for an invalid address.
func networks(address string) (list []string) {
	a, err := netip.ParseAddr(address)
	if err != nil {
		return nil
	}
	a = a.Unmap().WithZone("")
	bits := [...]int{32, 24, 16}
	if a.Is6() {
		bits = [...]int{64, 48, 32}
	}
	for _, n := range bits {
		list = append(list, netip.PrefixFrom(a, n).Masked().String())
	}
	return list
}

// NetworksOf returns the network of one client, a /32 or an IPv6 /64, and the block of one customer of a provider, a /24 or an IPv6 /48. An
// invalid address is returned twice, as it is.
func NetworksOf(address string) (network, block string) {
	list := networks(address)
	if list == nil {
		return address, address
	}
	return list[0], list[1]
}

// addressSubjects returns the address, the network and the provider's block of a client.
// The /16 (IPv6 /32) has no bound, because it spans unrelated clients. It only lowers the
// priority of its clients.
func addressSubjects(address string) []subject {
	list := networks(address)
	if list == nil {
		return []subject{{DigestOf("address " + address), WrongPasswords}}
	}
	subjects := make([]subject, len(list))
	for i, most := range [...]int{WrongPasswords, WrongPasswordsNetwork, 0} {
		subjects[i] = subject{DigestOf("network " + list[i]), most}
	}
	return subjects
}

// begin records an attempt to guess the password of target. from are the networks of the
// client. It returns false when any subject has reached its bound. The rank is the sum of the
// counts of from, so a client from a quiet network goes first.
func (a *attempts) begin(now time.Time, target subject, from ...subject) (*attempt, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for e := a.list.Front(); e != nil && now.Sub(e.Value.(*attempt).at) >= WrongPasswordsIn; e = a.list.Front() {
		a.forgetLocked(e.Value.(*attempt))
	}
	t := &attempt{at: now, subjects: append(from, target)}
	for _, s := range t.subjects {
		if s.most > 0 && a.counts[s.id] >= s.most {
			return nil, false
		}
	}
	for _, s := range from {
		t.rank += a.counts[s.id]
	}
	if a.list.Len() >= maxAttempts {
		a.forgetLocked(a.list.Front().Value.(*attempt))
	}
	for _, s := range t.subjects {
		a.counts[s.id]++
	}
	t.element = a.list.PushBack(t)
	return t, true
}

// forget takes back an attempt that was not wrong.
func (a *attempts) forget(t *attempt) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.forgetLocked(t)
}

func (a *attempts) forgetLocked(t *attempt) {
	if t.element == nil {
		return
	}
	a.list.Remove(t.element)
	t.element = nil
	for _, s := range t.subjects {
		if a.counts[s.id]--; a.counts[s.id] == 0 {
			delete(a.counts, s.id)
		}
	}
}
