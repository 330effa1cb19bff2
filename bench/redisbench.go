package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// drawn is the word that redis-benchmark replaces by a number, with so many digits.
const (
	drawn       = "__rand_int__"
	drawnDigits = 12
)

// ceiling is redis-benchmark with the script and the arguments of the store.
type ceiling struct {
	addr    string
	command []string // from EVALSHA on
	lists   int64    // that a decision puts something into
	client  redisClient
}

// newCeiling has redis-benchmark do on a server what a call of the store has done for a
// user, for as many users: copies of this one, without histories.
func newCeiling(ctx context.Context, addr string, c redisClient, call scriptCall, user string, users int) (*ceiling, error) {
	if len(user) != drawnDigits {
		return nil, fmt.Errorf("the number of user %s has not %d digits", user, drawnDigits)
	}
	for i := range users {
		// Of the names in a call only the first is there before the first decision.
		name := strings.ReplaceAll(call.keys[0], user, fmt.Sprintf("%0*d", drawnDigits, i))
		if n, err := c.do(ctx, "COPY", call.keys[0], name).AsInt64(); err != nil || n != 1 {
			return nil, fmt.Errorf("COPY %s %s: got %d, %w", call.keys[0], name, n, err)
		}
	}
	text, args := withoutZeros(call)
	sha, err := c.do(ctx, "SCRIPT", "LOAD", text).ToString()
	if err != nil {
		return nil, err
	}
	if call.lists == 0 {
		return nil, errors.New("the script of the store has put nothing into a list: how often it was run cannot be told")
	}
	b := &ceiling{addr: addr, lists: call.lists, client: c, command: []string{"EVALSHA", sha, strconv.Itoa(len(call.keys))}}
	for _, k := range call.keys {
		b.command = append(b.command, strings.ReplaceAll(k, user, drawn))
	}
	b.command = append(b.command, args...)
	return b, b.check(ctx)
}

// withoutZeros returns the script and the arguments of a call so that no argument has a
// zero byte in it: redis-benchmark cannot send any. It sends as many other bytes, and the
// script puts those of the call in their place.
func withoutZeros(call scriptCall) (text string, args []string) {
	var names, values []string
	for i, a := range call.args {
		if strings.Contains(a, "\x00") {
			names, values = append(names, fmt.Sprintf("ARGV[%d]", i+1)), append(values, quoteLua(a))
			a = strings.Repeat("x", len(a))
		}
		args = append(args, a)
	}
	text = call.text
	if len(names) > 0 {
		text = strings.Join(names, ", ") + " = " + strings.Join(values, ", ") + "\n" + text
	}
	return text, args
}

// quoteLua writes bytes as Lua has them.
func quoteLua(s string) string {
	var b strings.Builder
	for _, c := range []byte(s) {
		fmt.Fprintf(&b, `\%03d`, c)
	}
	return "'" + b.String() + "'"
}

// check makes one decision as redis-benchmark will, which must be allowed.
func (b *ceiling) check(ctx context.Context) error {
	var command []string
	for _, word := range b.command {
		command = append(command, strings.ReplaceAll(word, drawn, strings.Repeat("0", drawnDigits)))
	}
	answer, err := b.client.do(ctx, command...).AsBytes()
	if err != nil {
		return fmt.Errorf("the script of the store, as %s calls it: %w", benchOf, err)
	}
	const allowed = 1
	if len(answer) == 0 || answer[0] != allowed {
		return fmt.Errorf("the script of the store, as %s calls it, answers %q, want %d first", benchOf, answer, allowed)
	}
	return nil
}

// counted returns how many decisions were allowed on the server, by whomever: each puts
// an entry into its histories.
func (b *ceiling) counted(ctx context.Context) (int64, error) {
	n, err := b.client.calls(ctx, intoLists...)
	return n / b.lists, err
}

// redisBenchmark is redis-benchmark with settings.
type redisBenchmark struct {
	*ceiling
	connections, pipeline int
	keys                  int
	rate                  float64 // as last measured: how long it takes is told by a number of requests
}

// firstRate is how many decisions a second are expected before any was made.
const firstRate = 20_000

func (b *redisBenchmark) settings() string {
	return fmt.Sprintf("-c %d -P %d", b.connections, b.pipeline)
}

// run makes decisions for about as long as the load is to last. How many connections it
// has is not that of the load.
func (b *redisBenchmark) run(ctx context.Context, l load) (s sample, err error) {
	atOnce := b.connections * b.pipeline
	if b.rate == 0 {
		b.rate = firstRate
	}
	n := max(1, int(b.rate*l.duration.Seconds())/atOnce) * atOnce // what is begun is a whole pipeline
	argv := append([]string{"-h", "127.0.0.1", "-p", port(b.addr), "-c", strconv.Itoa(b.connections), "-P", strconv.Itoa(b.pipeline), "-n", strconv.Itoa(n),
		"-r", strconv.Itoa(b.keys), "--csv"}, b.command...)
	cmd := exec.CommandContext(ctx, benchOf, argv...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = grace
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return s, fmt.Errorf("%s: %w\n%s", benchOf, err, bytes.TrimSpace(errs.Bytes()))
	}
	if s, err = parseRedisBenchmark(out.String(), int64(n)); err != nil {
		return s, err
	}
	s.Client = cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	b.rate = s.rate()
	return s, nil
}

// redisFigures are the last ones that redis-benchmark prints: requests a second, and
// milliseconds: the average, least, p50, p95, p99 and most.
var redisFigures = regexp.MustCompile(`,"([\d.]+)","[\d.]+","[\d.]+","([\d.]+)","[\d.]+","([\d.]+)","[\d.]+"\s*$`)

// parseRedisBenchmark reads what redis-benchmark printed of n requests.
func parseRedisBenchmark(text string, n int64) (s sample, err error) {
	fields := redisFigures.FindStringSubmatch(text)
	if fields == nil {
		return s, fmt.Errorf("%s printed no result:\n%s", benchOf, text)
	}
	var figures [3]float64
	for i, f := range fields[1:] {
		if figures[i], err = strconv.ParseFloat(f, 64); err != nil {
			return s, err
		}
	}
	if figures[0] <= 0 {
		return s, errors.New(benchOf + " got no answer")
	}
	ms := func(f float64) time.Duration { return time.Duration(f * float64(time.Millisecond)) }
	return sample{Requests: n, Elapsed: ms(float64(n) / figures[0] * 1e3), P50: ms(figures[1]), P99: ms(figures[2])}, nil
}
