package redisstore

import (
	"context"
	"crypto/sha1" // names a script to the server, as the protocol wants it
	_ "embed"
	"encoding/hex"

	"github.com/redis/rueidis"
)

// script is a Lua script, run by its SHA-1.
type script struct{ text, sha string }

func newScript(text string) *script {
	sum := sha1.Sum([]byte(text))
	return &script{text, hex.EncodeToString(sum[:])}
}

//go:embed scripts/shared.lua
var sharedLua string

//go:embed scripts/day_counts.lua
var talliesLua string

//go:embed scripts/tombstone.lua
var marksLua string

//go:embed scripts/consume.lua
var consumeLua string

//go:embed scripts/read_history.lua
var historyLua string

//go:embed scripts/batch.lua
var batchLua string

//go:embed scripts/read_page.lua
var listLua string

//go:embed scripts/create_counters.lua
var admitLua string

//go:embed scripts/delete_counter.lua
var retireLua string

//go:embed scripts/move_begin.lua
var leaveLua string

//go:embed scripts/move_copy.lua
var arriveLua string

//go:embed scripts/move_end.lua
var departLua string

//go:embed scripts/append_history.lua
var importLua string

//go:embed scripts/set_counter.lua
var setLua string

//go:embed scripts/read_days.lua
var daysLua string

//go:embed scripts/set_days.lua
var setDaysLua string

//go:embed scripts/release_digest.lua
var releaseLua string

//go:embed scripts/mark.lua
var markLua string

var (
	consumeScript = newScript(sharedLua + talliesLua + consumeLua)
	historyScript = newScript(sharedLua + historyLua)
	batchScript   = newScript(batchLua)
	listScript    = newScript(listLua)
	admitScript   = newScript(admitLua)
	retireScript  = newScript(retireLua)
	leaveScript   = newScript(marksLua + leaveLua)
	arriveScript  = newScript(marksLua + arriveLua)
	departScript  = newScript(marksLua + departLua)
	importScript  = newScript(sharedLua + importLua)
	setScript     = newScript(talliesLua + setLua)
	daysScript    = newScript(daysLua)
	setDaysScript = newScript(setDaysLua)
	releaseScript = newScript(releaseLua)
	markScript    = newScript(markLua)
)

// read runs a script that writes nothing.
func (c *script) read(ctx context.Context, s *Store, keys, args []string) rueidis.RedisResult {
	r := s.do(ctx, c.bySHA(s, keys, args))
	if unknown(r) {
		return s.do(ctx, c.byText(s, keys, args))
	}
	return r
}

// readEach runs a script that writes nothing on the keys of each of some slots, at once.
func (c *script) readEach(ctx context.Context, s *Store, keys, args [][]string) []rueidis.RedisResult {
	cmds := make([]rueidis.Completed, len(keys))
	for i := range keys {
		cmds[i] = c.bySHA(s, keys[i], args[i])
	}
	results := s.doMany(ctx, cmds)
	for i, r := range results {
		if unknown(r) {
			results[i] = c.read(ctx, s, keys[i], args[i])
		}
	}
	return results
}

// write runs a script that writes, and waits for replicas if it shall.
func (c *script) write(ctx context.Context, s *Store, keys, args []string) rueidis.RedisResult {
	r := s.doWrite(ctx, c.bySHA(s, keys, args))
	if unknown(r) {
		return s.doWrite(ctx, c.byText(s, keys, args))
	}
	return r
}

// unknown reports whether the server does not know a script, so that its text is to be
// sent: it is new there, was flushed, or was not on the replica that took over.
func unknown(r rueidis.RedisResult) bool {
	err, ok := rueidis.IsRedisErr(r.Error())
	return ok && err.IsNoScript()
}

func (c *script) bySHA(s *Store, keys, args []string) rueidis.Completed {
	return s.client.B().Evalsha().Sha1(c.sha).Numkeys(int64(len(keys))).Key(keys...).Arg(args...).Build()
}

func (c *script) byText(s *Store, keys, args []string) rueidis.Completed {
	return s.client.B().Eval().Script(c.text).Numkeys(int64(len(keys))).Key(keys...).Arg(args...).Build()
}
