// Bench measures Limitkeeper beside other programs, on this machine and over
// loopback. It starts everything itself, measures in turn, checks the answers, and
// prints tables of medians. See README.md, and bench/run -h.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

func main() {
	if len(os.Args) > 1 && os.Args[1] == upstreamCommand {
		fail(runUpstream(os.Args[2:]))
		return
	}
	o, err := parse(os.Args[1:], os.Stderr)
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	fail(err)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	fail(run(ctx, o))
}

// fail ends the program when there is an error.
func fail(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// options are what the command line says.
type options struct {
	part        string
	rounds      int
	duration    time.Duration
	warmup      time.Duration
	connections []int
	keys        int
	only        []string
	out         string
	work        string
	profile     string
	sustained   time.Duration
}

// parts are what can be measured, in the order in which all of them are.
var parts = []struct {
	name, about string
	run         func(context.Context, *lab) error
}{
	{"proxy", "the gateway beside plain Caddy, forward_auth, nginx and HAProxy", runProxy},
	{"validate", "POST /validate beside a static answer and envoyproxy/ratelimit", runValidate},
	{"redis", "decisions on Redis beside redis-benchmark, our gateway on disk and ratelimit", runRedis},
	{"store", "decisions in core over badgerstore, without HTTP", runStore},
}

const usage = `usage: bench/run [part] [options]

Parts, all of them when none is named:
`

// parse reads the command line.
func parse(args []string, out io.Writer) (*options, error) {
	o := &options{part: "all"}
	f := flag.NewFlagSet("bench/run", flag.ContinueOnError)
	f.SetOutput(out)
	f.Usage = func() {
		fmt.Fprint(out, usage)
		for _, p := range parts {
			fmt.Fprintf(out, "  %-10s%s\n", p.name, p.about)
		}
		fmt.Fprintln(out, "\nOptions:")
		f.PrintDefaults()
	}
	f.IntVar(&o.rounds, "rounds", 5, "how often everything is measured, in turn")
	f.DurationVar(&o.duration, "duration", 5*time.Second, "how long one measurement takes")
	f.DurationVar(&o.warmup, "warmup", 2*time.Second, "how long each program is loaded before the first round, at each number of connections")
	connections := f.String("connections", "", "numbers of connections, such as 32,128 (default 32,128 for proxy, 32 for validate)")
	f.IntVar(&o.keys, "keys", 1000, "how many keys the requests carry")
	only := f.String("only", "", "measure only what has one of these words in its name, such as reverse_proxy,power; the first is what ratios are to")
	f.StringVar(&o.out, "out", filepath.Join("bin", "bench", "results"), "where tables, charts and figures are written")
	f.StringVar(&o.work, "work", filepath.Join("bin", "bench"), "where programs are built and data is kept meanwhile; it should be a disk")
	f.DurationVar(&o.sustained, "sustained", time.Minute, "how long the store is loaded without a pause, in the part store")
	f.StringVar(&o.profile, "profile", "", "write CPU profiles of the gateway under load into this directory, and measure nothing")
	if len(args) > 0 && !strings.HasPrefix(args[0], "-") {
		o.part, args = args[0], args[1:]
	}
	if err := f.Parse(args); err != nil {
		return nil, err
	}
	if f.NArg() > 0 && o.part == "all" {
		o.part = f.Arg(0)
	}
	o.only = words(*only)
	for _, w := range words(*connections) {
		n, err := strconv.Atoi(w)
		if err != nil || n < 1 {
			return nil, fmt.Errorf("-connections: want numbers such as 32,128, got %q", *connections)
		}
		o.connections = append(o.connections, n)
	}
	return o, o.check()
}

// words returns the words of a list with commas.
func words(list string) []string {
	return strings.FieldsFunc(list, func(r rune) bool { return r == ',' || r == ' ' })
}

// check returns what cannot be.
func (o *options) check() error {
	var names []string
	for _, p := range parts {
		names = append(names, p.name)
	}
	switch {
	case o.part != "all" && !slices.Contains(names, o.part):
		return fmt.Errorf("there is no part %q: want one of %s, all", o.part, strings.Join(names, ", "))
	case o.rounds < 1 || o.keys < 1 || o.duration < time.Second:
		return errors.New("want at least 1 round, 1 key and a duration of 1s")
	}
	return nil
}

// run measures the parts that were asked for.
func run(ctx context.Context, o *options) (err error) {
	l, err := newLab(ctx, o, os.Stderr)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.close()) }()
	for _, p := range parts {
		if o.part != "all" && o.part != p.name {
			continue
		}
		if err := p.run(ctx, l); err != nil {
			if ctx.Err() != nil {
				return errors.New("interrupted")
			}
			return fmt.Errorf("%s: %w", p.name, err)
		}
	}
	return nil
}
