package command

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/service"
	"github.com/limitkeeper/limitkeeper/storage/archive"
)

// archiveHelp is the part of the help that the commands for archives share.
const archiveHelp = `
Without --store the command speaks to a running server over Caddy's admin endpoint,
as the command reload does. With --store it opens a store that no server uses:
	badger:<dir>                    the embedded store in a directory; the command protect
	                                uses limitkeeper in the directory of --data
	redis:<address>[,<address>…]    Redis or Valkey without a password
	config:<file>                   the store of a Caddyfile or JSON config,
	                                with its passwords from the environment or files
`

// archiveFlags adds the flags that the commands for archives share. With admin the command speaks to a server unless --store names a store.
func archiveFlags(cmd *cobra.Command, admin bool) {
	if admin {
		addAdminFlags(cmd)
		cmd.Flags().String("store", "", "A store that no server uses: badger:<dir>, redis:<address> or config:<file>")
		return
	}
	cmd.Flags().StringP("adapter", "a", "", "The config adapter of a configuration file that is neither a Caddyfile nor JSON")
	cmd.Flags().Bool("json", false, "Print the summary as JSON")
}

// oneFile returns the check of a command whose only argument is a file.
func oneFile(what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return fmt.Errorf("name %s:%s", what, strings.SplitN(cmd.Example, "\n", 2)[0][1:])
		}
		return cobra.ExactArgs(1)(cmd, args)
	}
}

// withSignals makes run the action of a command. SIGINT and SIGTERM cancel its context.
func withSignals(cmd *cobra.Command, run func(ctx caddy.Context, t *transfer, args []string) error) {
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := checkAccount(cmd); err != nil {
			return err
		}
		signaled, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
		defer stop()
		ctx, done := caddy.NewContext(caddy.Context{Context: signaled})
		defer done()
		t := &transfer{adminClient: newAdminClient(ctx, cmd), cmd: cmd, progress: newProgressLine(cmd.ErrOrStderr())}
		err := run(ctx, t, args)
		t.progress.end()
		if err != nil && ctx.Err() != nil {
			return errors.New("interrupted: run the same command again")
		}
		return err
	}
}

// transfer is one run of a command for archives.
type transfer struct {
	*adminClient
	cmd      *cobra.Command
	progress *progressLine
}

// named is [loadNamed] with the flags of the command.
func (t *transfer) named(ctx caddy.Context, flag, value string, exists bool) (*namedStore, error) {
	return loadNamed(ctx, flag, value, t.flags.String("adapter"), exists)
}

// use opens a store that can be exported and imported, see [namedStore.use].
func (t *transfer) use(n *namedStore, fn func(core.Importer) error) error {
	return n.use(t.cmd, func(s core.Store) error {
		im, err := importerOf(s)
		if err != nil {
			return fmt.Errorf("%s: %w", n.flag, err)
		}
		return fn(im)
	})
}

// useService is use for the store of --store, which must exist, with a service that has the caps of the config. The
// context has the command as its actor.
func (t *transfer) useService(ctx caddy.Context, store string, fn func(context.Context, *service.Service, core.Importer) error) error {
	n, err := t.named(ctx, "--store", store, true)
	if err != nil {
		return err
	}
	return t.use(n, func(im core.Importer) error {
		s := service.New(im, service.Config{})
		s.Tune(n.tunables)
		return fn(core.WithActor(ctx, t.actor), s, im)
	})
}

// importerOf returns a store as one that can be exported and imported.
func importerOf(s core.Store) (core.Importer, error) {
	im, ok := s.(core.Importer)
	if !ok {
		return nil, errors.New("this store cannot be copied: want badger or redis")
	}
	return im, nil
}

// archiveQuery returns the query of a request for an export or import.
func archiveQuery(account string, noHistory bool) url.Values {
	return url.Values{"account": {account}, "history": {strconv.FormatBool(!noHistory)}}
}

// summary prints the numbers of records.
func (t *transfer) summary(done string, r archive.Report) error {
	text := &strings.Builder{}
	fmt.Fprintf(text, "%s:\n", done)
	if r.Unchanged {
		fmt.Fprintln(text, strings.Join(r.Accounts, ", "))
		return t.print(r, text.String())
	}
	for _, kind := range archive.Kinds() {
		n := humanize.Comma(r.Records[kind])
		if kept := r.Events; kind == archive.KindEvent && kept < r.Records[kind] && kept > 0 {
			n = fmt.Sprintf("%s of %s: the store keeps the newest", humanize.Comma(kept), n)
		}
		fmt.Fprintf(text, "%-12s %s\n", recordNames[kind], n)
	}
	return t.print(r, text.String())
}

// print prints the result of a command, as JSON with --json, else as text.
func (t *transfer) print(result any, text string) error {
	t.progress.end()
	if t.json {
		return json.NewEncoder(t.out).Encode(result)
	}
	_, err := io.WriteString(t.out, text)
	return err
}

// recordNames has the names of records for people.
var recordNames = map[archive.Kind]string{
	archive.KindAccount: "accounts", archive.KindOwnerKey: "owner's keys", archive.KindAccess: "sign-in data", archive.KindPrices: "prices", archive.KindWebhook: "webhooks",
	archive.KindWebhookEvent: "webhook events", archive.KindPlan: "plans",
	archive.KindUser: "users", archive.KindKey: "keys", archive.KindCounter: "counters", archive.KindDay: "days", archive.KindEvent: "events",
	archive.KindAudit: "audit log",
}

// progressLine shows the progress of a transfer: on a terminal one line that changes, else a line every 10 seconds.
type progressLine struct {
	out      io.Writer
	terminal bool
	last     time.Time
	shown    bool
}

func newProgressLine(out io.Writer) *progressLine {
	f, ok := out.(*os.File)
	return &progressLine{out: out, terminal: ok && term.IsTerminal(int(f.Fd())), last: time.Now()}
}

// show shows the progress, now and then.
func (p *progressLine) show(now archive.Progress) {
	every := 10 * time.Second
	if p.terminal {
		every = 200 * time.Millisecond
	}
	if time.Since(p.last) < every {
		return
	}
	p.last = time.Now()
	line := fmt.Sprintf("%s: %s records", now.Pass, humanize.Comma(now.Records))
	if now.Account != "" {
		line += ", account " + printable(now.Account)
	}
	if p.terminal {
		fmt.Fprintf(p.out, "\r\x1b[K%s", line)
		p.shown = true
		return
	}
	fmt.Fprintln(p.out, line)
}

// end ends the line on a terminal.
func (p *progressLine) end() {
	if p.shown {
		fmt.Fprintln(p.out)
		p.shown = false
	}
}
