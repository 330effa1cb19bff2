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
	"strings"
	"syscall"
	"time"

	"github.com/caddyserver/caddy/v2"
	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/limitkeeper/limitkeeper/caddymodule"
	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/archive"
)

func init() {
	for _, c := range []caddycmd.Command{
		{Name: "backup", Usage: "FILE [--store <store>] [--rate <bytes>]", Short: "Writes everything to a file, while the server runs",
			Long: backupHelp, CobraFunc: backupCommand},
		{Name: "restore", Usage: "FILE --store <store>", Short: "Fills an empty store from a backup", Long: restoreHelp, CobraFunc: restoreCommand},
		{Name: "export", Usage: "[FILE] [--account NAME] [--no-history] [--store <store>]", Short: "Writes accounts to a file",
			Long: exportHelp, CobraFunc: exportCommand},
		{Name: "import", Usage: "FILE|--csv FILE [--account NAME] [--no-history] [--dry-run] [--store <store>]", Short: "Adds the accounts of a file, or keys from CSV, to a store",
			Long: importHelp, CobraFunc: importCommand},
		{Name: "migrate", Usage: "--from <store> --to <store> [--history-retention <30d>]", Short: "Copies everything from one store to another",
			Long: migrateHelp, CobraFunc: migrateCommand},
	} {
		caddycmd.RegisterCommand(c)
	}
}

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

// archiveFlags adds the flags that the commands for archives share. With admin the command can also speak to a server.
func archiveFlags(cmd *cobra.Command, admin bool) {
	flags := cmd.Flags()
	if admin {
		flags.String("address", "", "The address of the admin endpoint, if it is not the default")
		flags.StringP("config", "c", "", "A configuration file to take the address of the admin endpoint from")
	}
	flags.StringP("adapter", "a", "", "The config adapter of a configuration file that is neither a Caddyfile nor JSON")
	flags.Bool("json", false, "Print the summary as JSON")
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
func withSignals(cmd *cobra.Command, run func(ctx context.Context, t *transfer, args []string) error) {
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := checkAccount(cmd); err != nil {
			return err
		}
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
		defer stop()
		flags := caddycmd.Flags{FlagSet: cmd.Flags()}
		t := &transfer{cmd: cmd, flags: flags, json: flags.Bool("json"), progress: newProgressLine(cmd.ErrOrStderr())}
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
	cmd      *cobra.Command
	flags    caddycmd.Flags
	json     bool
	progress *progressLine
}

// named is [loadNamed] with the flags of the command.
func (t *transfer) named(ctx caddy.Context, flag, value string, exists bool) (*namedStore, error) {
	return loadNamed(ctx, flag, value, t.flags.String("adapter"), exists)
}

// use opens a store that can be exported and imported, see [useStore].
func (t *transfer) use(n *namedStore, fn func(core.Importer) error) error {
	return useStore(t.cmd, n.flag, n.module, core.DefaultTunables(), func(s core.Store) error {
		im, ok := s.(core.Importer)
		if !ok {
			return fmt.Errorf("%s: this store cannot be copied: want badger or redis", n.flag)
		}
		return fn(im)
	})
}

// runningImporter returns the running store as one that can be exported and imported.
func runningImporter() (*caddymodule.OpenStore, core.Importer, error) {
	running, err := caddymodule.RunningStore()
	if err != nil {
		return nil, nil, err
	}
	s, ok := running.Store.(core.Importer)
	if !ok {
		return nil, nil, errors.New("this store cannot be copied: want badger or redis")
	}
	return running, s, nil
}

// archiveQuery returns the query of a request for an export or import.
func archiveQuery(account string, noHistory bool) url.Values {
	q := url.Values{}
	if account != "" {
		q.Set("account", account)
	}
	if noHistory {
		q.Set("history", "false")
	}
	return q
}

// summary prints the numbers of records.
func (t *transfer) summary(done string, r archive.Report) error {
	t.progress.end()
	out := t.cmd.OutOrStdout()
	if t.json {
		return json.NewEncoder(out).Encode(r)
	}
	fmt.Fprintf(out, "%s:\n", done)
	if r.Unchanged {
		_, err := fmt.Fprintln(out, strings.Join(r.Accounts, ", "))
		return err
	}
	for _, kind := range archive.Kinds() {
		n := humanize.Comma(r.Records[kind])
		if kept := r.Events; kind == archive.KindEvent && kept < r.Records[kind] && kept > 0 {
			n = fmt.Sprintf("%s of %s: the store keeps the newest", humanize.Comma(kept), n)
		}
		fmt.Fprintf(out, "%-12s %s\n", recordNames[kind], n)
	}
	return nil
}

// recordNames has the names of records for people.
var recordNames = map[archive.Kind]string{
	archive.KindAccount: "accounts", archive.KindOwnerKey: "owner's keys", archive.KindAccess: "sign-in data", archive.KindPlan: "plans",
	archive.KindUser: "users", archive.KindKey: "keys", archive.KindCounter: "counters", archive.KindDay: "days", archive.KindEvent: "events",
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
