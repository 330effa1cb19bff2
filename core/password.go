package core

import (
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"time"

	"golang.org/x/crypto/argon2"
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
