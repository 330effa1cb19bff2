package core

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"

	"golang.org/x/crypto/argon2"
)

// A password is hashed by argon2id with the second recommended choice of RFC 9106 section
// 4, but on one lane: 64 MiB of memory, three passes.
const (
	argonTime   = 3
	argonMemory = 64 << 10 // KiB
	argonLanes  = 1
	argonSalt   = 16 // bytes
	argonSum    = 32 // bytes

	argonMost  = 1  // at the same time: that bounds the memory, and leaves processors to others
	argonQueue = 16 // may wait for their turn
)

// errPasswordHash means that a stored hash of a password cannot be read.
var errPasswordHash = errors.New("the stored hash of a password is damaged")

// errBusy means that too many passwords wait to be hashed.
var errBusy = errors.New("too many passwords wait to be hashed")

// hashing hashes passwords, a few at the same time.
type hashing struct {
	turn    chan struct{} // has room for those that are hashed
	waiting chan struct{} // and for those that wait as well
}

func newHashing() *hashing {
	return &hashing{turn: make(chan struct{}, argonMost), waiting: make(chan struct{}, argonMost+argonQueue)}
}

// enter waits for its turn. When too many wait already it is [ErrUnavailable].
func (h *hashing) enter(ctx context.Context) error {
	select {
	case h.waiting <- struct{}{}:
	default:
		return Unavailable(errBusy)
	}
	select {
	case h.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		<-h.waiting
		return ctx.Err()
	}
}

func (h *hashing) leave() {
	<-h.turn
	<-h.waiting
}

// hash returns the hash of a password in the PHC string format, with a new salt:
//
//	$argon2id$v=19$m=65536,t=3,p=1$<salt>$<sum>
func (h *hashing) hash(ctx context.Context, password string) (string, error) {
	if err := h.enter(ctx); err != nil {
		return "", err
	}
	defer h.leave()
	salt := make([]byte, argonSalt)
	_, _ = rand.Read(salt) // crypto/rand.Read never fails
	sum := argon2.IDKey([]byte(password), salt, argonTime, argonMemory, argonLanes, argonSum)
	b64 := base64.RawStdEncoding.EncodeToString
	return fmt.Sprintf("$argon2id$v=%d$m=%d,t=%d,p=%d$%s$%s", argon2.Version, argonMemory, argonTime, argonLanes, b64(salt), b64(sum)), nil
}

// matches reports whether a password is that of a hash. With the hash "" it never is,
// and takes as long.
func (h *hashing) matches(ctx context.Context, hash, password string) (bool, error) {
	if err := h.enter(ctx); err != nil {
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
	sum := argon2.IDKey([]byte(password), p.salt, p.time, p.memory, p.lanes, uint32(len(p.sum)))
	return subtle.ConstantTimeCompare(sum, p.sum) == 1 && hash != "", nil
}

// phc is a hash taken apart.
type phc struct {
	time, memory uint32
	lanes        uint8
	salt, sum    []byte
}

func parsePHC(hash string) (p phc, err error) {
	f := strings.Split(hash, "$")
	if len(f) != 6 || f[0] != "" || f[1] != "argon2id" || f[2] != fmt.Sprintf("v=%d", argon2.Version) {
		return phc{}, errPasswordHash
	}
	if _, err := fmt.Sscanf(f[3], "m=%d,t=%d,p=%d", &p.memory, &p.time, &p.lanes); err != nil {
		return phc{}, errPasswordHash
	}
	salt, err1 := base64.RawStdEncoding.DecodeString(f[4])
	sum, err2 := base64.RawStdEncoding.DecodeString(f[5])
	if err1 != nil || err2 != nil || len(sum) != argonSum || p.time == 0 || p.lanes == 0 {
		return phc{}, errPasswordHash
	}
	p.salt, p.sum = salt, sum
	return p, nil
}
