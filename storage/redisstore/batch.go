package redisstore

import (
	"context"
	"errors"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/redis/rueidis"

	"github.com/limitkeeper/limitkeeper/core"
)

// batch is a list of commands on keys of one slot, see scripts/batch.lua.
type batch struct {
	keys     []string // the version first
	keyIndex map[string]string
	args     []string // what comes before the commands first
	addsData bool     // it makes something that was not there
}

// Before the commands in the arguments: the version that must be, the one after it, and
// whether a full memory is in the way.
const headerArgs = 3

func newBatch(slot keySlot) *batch {
	return &batch{keys: []string{slot.key("version")}, keyIndex: map[string]string{}, args: make([]string, headerArgs)}
}

// key returns the number of a key.
func (b *batch) keyNumber(name string) string {
	n, ok := b.keyIndex[name]
	if !ok {
		b.keys = append(b.keys, name)
		n = strconv.Itoa(len(b.keys))
		b.keyIndex[name] = n
	}
	return n
}

// maxArgs is how many arguments a command may have: more than a few thousand do not fit
// on the stack of a script.
const maxArgs = 1000

func (b *batch) add(command, key string, args ...string) {
	b.args = append(append(b.args, strconv.Itoa(len(args)), command, b.keyNumber(key)), args...)
}

// addMany is add for a command that takes any number of groups of arguments.
func (b *batch) addMany(command, key string, args []string) {
	for len(args) > maxArgs {
		b.add(command, key, args[:maxArgs]...)
		args = args[maxArgs:]
	}
	if len(args) > 0 {
		b.add(command, key, args...)
	}
}

func (b *batch) empty() bool { return len(b.args) == headerArgs }

func (b *batch) tooLarge() bool { return len(b.keys)+len(b.args)+3 > maxBatchParts }

// maxMessage is how many parts a command to a server has at most.
const maxBatchParts = 1 << 20

var errTooLarge = errors.New("redis: the transaction changes too much at once")

// longer is by how much a call may be longer for each part: a large one takes time.
const timePerPart = 5 * time.Microsecond

// look runs commands that only read. It returns the version that the slot has and what
// the commands return.
func (s *Store) readBatch(ctx context.Context, b *batch) (version string, answers []rueidis.RedisMessage, err error) {
	ctx, cancel := s.withTimeout(ctx)
	defer cancel()
	all, err := batchScript.read(ctx, s, b.keys, b.args).ToArray()
	if err != nil {
		return "", nil, unavailable(err)
	}
	if version, err = all[0].ToString(); err != nil {
		return "", nil, unavailable(err)
	}
	return version, all[1:], nil
}

// commit runs commands that write, if the slot has still the version. It reports whether
// they were run.
func (s *Store) commit(ctx context.Context, b *batch, version string) (done bool, err error) {
	// The next version is random: numbers would be given again after a fail-over that forgets
	// some.
	b.args[0], b.args[1] = version, strconv.FormatUint(rand.Uint64(), 36)
	if b.addsData {
		b.args[2] = "grows"
	}
	long := time.Duration(len(b.keys)+len(b.args)) * timePerPart
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.o.Timeout+long)
	defer cancel()
	all, err := batchScript.write(ctx, s, b.keys, b.args).ToArray()
	if err != nil {
		return false, unavailable(err)
	}
	return len(all) == 2, nil
}

// text returns an answer that is a text, and whether there is one.
func text(m rueidis.RedisMessage) (string, bool) {
	if m.IsNil() {
		return "", false
	}
	s, err := m.ToString()
	return s, err == nil
}

// number returns an answer that is a number, as such or as a text; 0 for none.
func number(m rueidis.RedisMessage) int64 {
	if m.IsNil() {
		return 0
	}
	n, _ := m.AsInt64()
	return n
}

// optimistic runs try until it is not told that others were quicker.
func (s *Store) retryStale(try func() (done bool, err error)) error {
	for begun, n := time.Now(), 0; ; n++ {
		done, err := try()
		if done || err != nil {
			return err
		}
		if time.Since(begun) > maxRetryTime {
			return core.Unavailable(errors.New("redis: others change the same account all the time"))
		}
		time.Sleep(backoff(n))
	}
}

// contention is for how long a transaction is tried again.
const maxRetryTime = 5 * time.Second
