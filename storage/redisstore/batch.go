package redisstore

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"time"

	"github.com/redis/rueidis"

	"github.com/limitkeeper/limitkeeper/core"
)

// batch is a list of commands on keys of one slot. scripts/batch.lua runs it.
type batch struct {
	keys     []string // the version key first
	keyIndex map[string]string
	args     []string // headerArgs arguments, then the commands
	addsData bool     // fails when the memory of the server is full
}

// headerArgs is the number of arguments before the commands: expected version, next version, and whether
// the batch fails when memory is full.
const headerArgs = 3

// newBatchOf returns a batch that depends on a version key. The slot of the key is the slot of the batch.
func newBatchOf(version string) *batch {
	return &batch{keys: []string{version}, keyIndex: map[string]string{}, args: make([]string, headerArgs)}
}

// keyNumber returns the position of a key in KEYS, and adds the key if necessary.
func (b *batch) keyNumber(name string) string {
	n, ok := b.keyIndex[name]
	if !ok {
		b.keys = append(b.keys, name)
		n = strconv.Itoa(len(b.keys))
		b.keyIndex[name] = n
	}
	return n
}

// maxArgs is the maximum number of arguments of a command. Lua's stack holds only a few thousand.
const maxArgs = 1000

func (b *batch) add(command, key string, args ...string) {
	b.args = append(append(b.args, strconv.Itoa(len(args)), command, b.keyNumber(key)), args...)
}

// addMany adds a variadic command. It splits args into chunks of maxArgs.
func (b *batch) addMany(command, key string, args []string) {
	for some := range slices.Chunk(args, maxArgs) {
		b.add(command, key, some...)
	}
}

// checkSize returns [core.ErrTooLarge] for a batch that would take too long.
func (b *batch) checkSize() error {
	if n := len(b.keys) + len(b.args); n > maxBatchParts {
		return fmt.Errorf("%w: %d keys and arguments of commands, and Redis takes %d at once", core.ErrTooLarge, n, maxBatchParts)
	}
	return nil
}

// maxBatchParts is the maximum number of keys and arguments in a batch: about 2,000 new users with two keys each. Such a
// batch blocks the master for about 0.2 s. A batch of 500,000 takes longer than [DefaultTimeout], and then Update could
// not say whether it was stored.
const maxBatchParts = 200_000

// timePerPart extends the timeout of a batch for each of its keys and arguments.
const timePerPart = 5 * time.Microsecond

// readBatch runs commands that only read. It returns the version of the slot and the answers.
func (s *Store) readBatch(ctx context.Context, b *batch) (version string, answers []rueidis.RedisMessage, err error) {
	all, err := batchScript.run(ctx, s.reads, b.keys, b.args).ToArray()
	if err != nil {
		return "", nil, unavailable(err)
	}
	if version, err = all[0].ToString(); err != nil {
		return "", nil, unavailable(err)
	}
	return version, all[1:], nil
}

// commit runs commands that write if the slot still has the version. Otherwise it returns errStale. numbers has the number of each new entry in an
// audit log.
func (s *Store) commit(ctx context.Context, b *batch, version string) (numbers []rueidis.RedisMessage, err error) {
	// The next version is random. A counter would repeat versions after a failover that loses writes.
	b.args[0], b.args[1] = version, strconv.FormatUint(rand.Uint64(), 36)
	if b.addsData {
		b.args[2] = "grows"
	}
	long := s.forLonger(time.Duration(len(b.keys)+len(b.args)) * timePerPart)
	all, err := batchScript.run(ctx, long, b.keys, b.args).ToArray()
	switch {
	case err != nil:
		return nil, unavailable(err)
	case len(all) < 2:
		return nil, errStale
	}
	return all[2:], nil
}

// text returns a string answer, and false for nil.
func text(m rueidis.RedisMessage) (string, bool) {
	s, err := m.ToString()
	return s, err == nil
}

// number returns an answer as an integer, and 0 for nil.
func number(m rueidis.RedisMessage) int64 {
	n, _ := m.AsInt64()
	return n
}
