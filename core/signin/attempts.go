package signin

import (
	"container/list"
	"net/netip"
	"sync"
	"time"

	"github.com/limitkeeper/limitkeeper/core/secrets"
)

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
	counts map[secrets.Digest]int
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
	id   secrets.Digest
	most int // attempts within WrongPasswordsIn; 0 for no bound
}

func newAttempts() *attempts { return &attempts{counts: map[secrets.Digest]int{}} }

// nameSubject is the name of an account with the folded email of a person, whether both exist or not.
func nameSubject(in Login) subject {
	return subject{secrets.DigestOf("name " + in.Account + "\x00" + in.Email), WrongPasswords}
}

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
		return []subject{{secrets.DigestOf("address " + address), WrongPasswords}}
	}
	subjects := make([]subject, len(list))
	for i, most := range [...]int{WrongPasswords, WrongPasswordsNetwork, 0} {
		subjects[i] = subject{secrets.DigestOf("network " + list[i]), most}
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
