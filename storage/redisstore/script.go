package redisstore

import (
	"context"
	"crypto/sha1" // EVALSHA names a script by its SHA-1
	"embed"
	"encoding/hex"
	"strings"

	"github.com/redis/rueidis"
)

// script is a Lua script. The server runs it by its SHA-1.
type script struct{ text, sha string }

// newScript joins files of the directory scripts, named without extension.
func newScript(files ...string) *script {
	var text strings.Builder
	for _, f := range files {
		b, err := scriptFiles.ReadFile("scripts/" + f + ".lua")
		if err != nil {
			panic(err) // a misspelled name below
		}
		text.Write(b)
	}
	sum := sha1.Sum([]byte(text.String()))
	return &script{text.String(), hex.EncodeToString(sum[:])}
}

//go:embed scripts/*.lua
var scriptFiles embed.FS

var (
	consumeScript        = newScript("shared", "day_counts", "consume")
	readHistoryScript    = newScript("shared", "read_history")
	importHistoryScript  = newScript("shared", "import_history")
	batchScript          = newScript("batch")
	readPageScript       = newScript("read_page")
	createCountersScript = newScript("create_counters")
	setCounterScript     = newScript("shared", "day_counts", "set_counter")
	deleteCounterScript  = newScript("delete_counter")
	moveBeginScript      = newScript("tombstone", "move_begin")
	moveCopyScript       = newScript("tombstone", "move_copy")
	moveEndScript        = newScript("tombstone", "move_end")
	readDaysScript       = newScript("read_days")
	setDaysScript        = newScript("set_days")
	releaseDigestScript  = newScript("release_digest")
	markScript           = newScript("mark")
)

// read runs a script that writes nothing.
func (c *script) read(ctx context.Context, s *Store, keys, args []string) rueidis.RedisResult {
	r := s.do(ctx, c.bySHA(s, keys, args))
	if notLoaded(r) {
		return s.do(ctx, c.byText(s, keys, args))
	}
	return r
}

// readEach runs a read-only script in parallel, once for each element of keys and args.
func (c *script) readEach(ctx context.Context, s *Store, keys, args [][]string) []rueidis.RedisResult {
	cmds := make([]rueidis.Completed, len(keys))
	for i := range keys {
		cmds[i] = c.bySHA(s, keys[i], args[i])
	}
	results := s.doMany(ctx, cmds)
	for i, r := range results {
		if notLoaded(r) {
			results[i] = c.read(ctx, s, keys[i], args[i])
		}
	}
	return results
}

// write runs a script that writes, and waits for replicas if the settings say so.
func (c *script) write(ctx context.Context, s *Store, keys, args []string) rueidis.RedisResult {
	r := s.doWrite(ctx, c.bySHA(s, keys, args))
	if notLoaded(r) {
		return s.doWrite(ctx, c.byText(s, keys, args))
	}
	return r
}

// notLoaded reports whether the server does not have the script: it is new, was flushed, or was not on the
// promoted replica. The caller then sends the text.
func notLoaded(r rueidis.RedisResult) bool {
	err, ok := rueidis.IsRedisErr(r.Error())
	return ok && err.IsNoScript()
}

func (c *script) bySHA(s *Store, keys, args []string) rueidis.Completed {
	return s.client.B().Evalsha().Sha1(c.sha).Numkeys(int64(len(keys))).Key(keys...).Arg(args...).Build()
}

func (c *script) byText(s *Store, keys, args []string) rueidis.Completed {
	return s.client.B().Eval().Script(c.text).Numkeys(int64(len(keys))).Key(keys...).Arg(args...).Build()
}
