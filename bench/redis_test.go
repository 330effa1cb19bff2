package main

import (
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// shownLines is what MONITOR shows of a decision.
var shownLines = []string{
	`+1781000000.000001 [0 127.0.0.1:50000] "PING"` + "\r\n",
	`+1781000000.000002 [0 127.0.0.1:50001] "EVALSHA" "abc" "2" "a{1}" "b{1}" "\x00\x01" "7"` + "\r\n",
	`+1781000000.000003 [0 127.0.0.1:50001] "EVAL" "-- \"text\"\nreturn 1" "2" "a{1}" "b{1}" "\x00\x01" "7"` + "\r\n",
	`+1781000000.000004 [0 lua] "lpush" "b{1}" "eval"` + "\r\n",
	`+1781000000.000005 [0 lua] "HSET" "a{1}" "7" "\xff"` + "\r\n",
}

// What the store has asked for is read, bytes and all, with what the script put into
// lists.
func TestParseCall(t *testing.T) {
	want := scriptCall{text: "-- \"text\"\nreturn 1", keys: []string{"a{1}", "b{1}"}, args: []string{"\x00\x01", "7"}, lists: 1}
	got, err := parseCall(shownLines)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(scriptCall{})); diff != "" {
		t.Errorf("call (-want +got):\n%s", diff)
	}
	for name, lines := range map[string][]string{
		"no script":   shownLines[:2],
		"two scripts": append(slices.Clone(shownLines), shownLines[2]),
		"no keys":     {`+1.2 [0 127.0.0.1:5] "EVAL" "text" "0" "a"`},
		"other text":  {"+OK\r\n"},
	} {
		if got, err := parseCall(lines); err == nil {
			t.Errorf("%s: got %+v, want an error", name, got)
		}
	}
}

// Arguments that redis-benchmark cannot send are put into the script, as long as they
// were, and the others are sent as they are.
func TestWithoutZeros(t *testing.T) {
	text, args := withoutZeros(scriptCall{text: "return 1", args: []string{"\x00\x01'", "7", "\x00"}})
	if want := `ARGV[1], ARGV[3] = '\000\001\039', '\000'` + "\nreturn 1"; text != want {
		t.Errorf("got %s, want %s", text, want)
	}
	if want := []string{"xxx", "7", "x"}; !cmp.Equal(want, args) {
		t.Errorf("got %q, want %q", args, want)
	}
	if text, args := withoutZeros(scriptCall{text: "return 1", args: []string{"7"}}); text != "return 1" || !cmp.Equal(args, []string{"7"}) {
		t.Errorf("without zero bytes: got %s and %q, want what was given", text, args)
	}
}

// The figures of redis-benchmark are the last ones, whatever the name of the command
// has in it.
func TestParseRedisBenchmark(t *testing.T) {
	text := `"test","rps","avg_latency_ms","min_latency_ms","p50_latency_ms","p95_latency_ms","p99_latency_ms","max_latency_ms"
"EVALSHA x "1","2" ` + "\n\xff" + `","20000.00","0.160","0.064","0.151","0.263","0.343","3.711"
`
	got, err := parseRedisBenchmark(text, 50_000)
	if want := (sample{Requests: 50_000, Elapsed: 2500 * time.Millisecond, P50: 151 * time.Microsecond, P99: 343 * time.Microsecond}); err != nil || got != want {
		t.Errorf("got %+v, %v, want %+v", got, err, want)
	}
	for _, text := range []string{"", "Error from server: ERR x", strings.Replace(text, "20000.00", "0.00", 1), strings.Replace(text, "20000.00", "1.2.3", 1)} {
		if got, err := parseRedisBenchmark(text, 1); err == nil {
			t.Errorf("%q: got %+v, want an error", text, got)
		}
	}
}

// Connections are those of the store that were asked last for a decision, and calls
// those of one command.
func TestParseStatistics(t *testing.T) {
	clients := "id=1 addr=a name=limitkeeper db=0 cmd=evalsha user=default\nid=2 name=limitkeeper cmd=ping\nid=3 name=limitkeeper cmd=evalsha\nid=4 name=bench cmd=evalsha\n"
	if got := parseClients(clients, "limitkeeper", "evalsha"); got != 2 {
		t.Errorf("got %d connections, want 2", got)
	}
	info := "# Commandstats\r\ncmdstat_lpushx:calls=3,usec=1\r\ncmdstat_lpush:calls=1234,usec=5,usec_per_call=0.1\r\n"
	for command, want := range map[string]int64{"lpush": 1234, "lpushx": 3, "rpush": 0} {
		if got, err := parseCalls(info, command); err != nil || got != want {
			t.Errorf("%s: got %d, %v, want %d", command, got, err, want)
		}
	}
}

func TestQuantile(t *testing.T) {
	all := []time.Duration{1, 2, 3, 4, 5}
	for q, want := range map[float64]time.Duration{0: 1, 0.5: 3, 0.99: 4, 1: 5} {
		if got := quantile(all, q); got != want {
			t.Errorf("%v: got %v, want %v", q, got, want)
		}
	}
	if got := quantile(nil, 0.5); got != 0 {
		t.Errorf("of none: got %v, want 0", got)
	}
}

// Where the processor time of who asked is told, the table has it.
func TestReportOfWhoAsked(t *testing.T) {
	r := testReport()
	all := []series{samplesOf("ceiling", "ceiling", false, []int64{10000}, 30*time.Microsecond)}
	all[0].samples[0].Client = 20 * time.Millisecond
	r.add("64 callers", all)
	want := "| 64 callers | requests/s | ratio | least–most | CPU µs/request | client µs | p50 ms | p99 ms |"
	if got := r.Groups[1].table().String(); !strings.HasPrefix(got, want) || !strings.Contains(got, " 2.0 |") {
		t.Errorf("got\n%s\nwant a column client µs with 2.0", got)
	}
	if got := r.Groups[0].table().String(); strings.Contains(got, "client") {
		t.Errorf("nothing is known of who asked: got\n%s", got)
	}
}

// The script of the store is one that redis-benchmark can run, and what both have
// counted is what they have asked for. Where the programs are not installed that is not
// looked at.
func TestRedisAlone(t *testing.T) {
	for _, program := range []string{"redis-server", benchOf} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("%s is not installed", program)
		}
	}
	l := testLab()
	l.dir, l.o.warmup = t.TempDir(), 100*time.Millisecond
	t.Cleanup(l.stopAll)
	server, err := l.startRedis(t.Context(), "redis")
	if err != nil {
		t.Fatal(err)
	}
	client, err := server.dial()
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	store, err := openRedisLoad(t.Context(), server.addr, 20)
	if err != nil {
		t.Fatal(err)
	}
	defer store.store.Close()
	a := &alone{l: l, server: server, store: store, client: client}
	if a.ceiling, err = a.newCeiling(t.Context()); err != nil {
		t.Fatal(err)
	}
	group, err := a.subjects(t.Context(), 4, a.benchmark(2, 3))
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range group.subjects {
		m, err := s.measure(t.Context(), load{connections: 4, duration: 100 * time.Millisecond})
		if err != nil || m.Requests == 0 || m.Client == 0 {
			t.Errorf("%s: got %+v, %v, want decisions and the processor time of who asked", s.name, m, err)
		}
	}
	// Of the users that redis-benchmark draws each has a history.
	name := strings.ReplaceAll(a.ceiling.command[4], drawn, strings.Repeat("0", drawnDigits-2)+"19")
	if n, err := client.do(t.Context(), "LLEN", name).AsInt64(); err != nil || n == 0 {
		t.Errorf("LLEN %s: got %d, %v, want entries", name, n, err)
	}
	if user := strconv.FormatInt(store.keys[0].user, 10); len(user) != drawnDigits {
		t.Errorf("user %s has not %d digits: names would be of another length", user, drawnDigits)
	}
}
