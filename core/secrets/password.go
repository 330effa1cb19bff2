package secrets

import (
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"

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

	// MaxArgonTime, MaxArgonMemory and MaxArgonLanes are the largest parameters of a stored hash: the second recommended choice of RFC 9106 section 4. A hash of another
	// installation may have them. A larger cost would let the author of an archive spend the memory and the CPU of all accounts.
	MaxArgonTime   = 3
	MaxArgonMemory = 64 << 10 // KiB
	MaxArgonLanes  = 4
	maxArgonSalt   = 64 // bytes
)

// errPasswordHash means that a stored hash of a password cannot be read, or costs too much.
var errPasswordHash = errors.New("the stored hash of a password is damaged, or costs more than this program spends")

// PHC is the hash of a password by argon2id, with its salt and its costs: the parts of a PHC string.
type PHC struct {
	Time, Memory uint32 // passes; KiB
	Lanes        uint8
	Salt, Sum    []byte
}

// NewPHC returns the parts of a new hash: a random salt, and room for the sum.
func NewPHC() PHC {
	p := PHC{Time: argonTime, Memory: argonMemory, Lanes: argonLanes, Salt: make([]byte, argonSalt), Sum: make([]byte, argonSum)}
	_, _ = rand.Read(p.Salt) // crypto/rand.Read never fails
	return p
}

// String returns the hash in the PHC string format:
//
//	$argon2id$v=19$m=19456,t=2,p=1$<salt>$<sum>
func (p PHC) String() string {
	b64 := base64.RawStdEncoding.EncodeToString
	return fmt.Sprintf("$argon2id$v=%d$m=%d,t=%d,p=%d$%s$%s", argon2.Version, p.Memory, p.Time, p.Lanes, b64(p.Salt), b64(p.Sum))
}

// ParsePHC parses a hash. It refuses parameters above MaxArgonTime, MaxArgonMemory and MaxArgonLanes.
func ParsePHC(hash string) (p PHC, err error) {
	f := strings.Split(hash, "$")
	if len(f) != 6 || f[0] != "" || f[1] != "argon2id" || f[2] != fmt.Sprintf("v=%d", argon2.Version) {
		return PHC{}, errPasswordHash
	}
	if _, err := fmt.Sscanf(f[3], "m=%d,t=%d,p=%d", &p.Memory, &p.Time, &p.Lanes); err != nil {
		return PHC{}, errPasswordHash
	}
	if f[3] != fmt.Sprintf("m=%d,t=%d,p=%d", p.Memory, p.Time, p.Lanes) || p.Memory > MaxArgonMemory || p.Time > MaxArgonTime || p.Lanes > MaxArgonLanes {
		return PHC{}, errPasswordHash
	}
	salt, err1 := base64.RawStdEncoding.DecodeString(f[4])
	sum, err2 := base64.RawStdEncoding.DecodeString(f[5])
	if err1 != nil || err2 != nil || len(sum) != argonSum || len(salt) > maxArgonSalt || p.Time == 0 || p.Lanes == 0 {
		return PHC{}, errPasswordHash
	}
	p.Salt, p.Sum = salt, sum
	return p, nil
}
