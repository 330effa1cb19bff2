package caddymodule

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/caddyserver/caddy/v2"
	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	"github.com/spf13/cobra"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/migrate"
)

func init() {
	caddycmd.RegisterCommand(caddycmd.Command{
		Name:      "migrate",
		Usage:     "--from <store> --to <store> [--history-retention <30d>] [--json]",
		Short:     "Moves everything from one store to another",
		Long:      migrateHelp,
		CobraFunc: migrateCommand,
	})
}

const migrateHelp = `
Copies accounts, owner's keys, sign-in data, plans, users, keys, counters, daily totals
and histories from the store --from to the store --to. All keys keep their values.
Request ids are not copied: a request that is repeated afterwards counts again.

A store is one of
	badger:<dir>                    the embedded store in a directory; the command protect
	                                uses limitkeeper in the directory of --data
	redis:<address>[,<address>…]    Redis or Valkey without a password
	config:<file>                   the store of a Caddyfile or JSON config,
	                                with its passwords from the environment or files

Stop all servers that use either store first. Start them with the new store after the
command has succeeded: it has then read and compared all data of both stores. The store
--from is not changed.

If the command is interrupted, run it again: it continues. It refuses a store --to with
data that is not in the store --from.

--history-retention limits the age of the copied history. The default is the configured
history_retention if a config is given, or else 30 days.
`

func migrateCommand(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.String("from", "", "The store to copy from")
	flags.String("to", "", "The store to copy to")
	flags.String("history-retention", "", "Maximum age of the copied history, such as 30d")
	flags.StringP("adapter", "a", "", "The config adapter of config:<file>, for a file that is neither a Caddyfile nor JSON")
	flags.Bool("json", false, "Print the summary as JSON")
	cmd.Args = cobra.NoArgs
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		m, err := newMove(cmd)
		if err != nil {
			return err
		}
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
		defer stop()
		return m.run(ctx)
	}
}

// move is one run of the command migrate.
type move struct {
	from, to  *storeSpec
	retention time.Duration // 0 for the configured retention
	json      bool
	out, err  io.Writer
}

func newMove(cmd *cobra.Command) (m *move, err error) {
	m = &move{out: cmd.OutOrStdout(), err: cmd.ErrOrStderr()}
	flags := caddycmd.Flags{FlagSet: cmd.Flags()}
	m.json = flags.Bool("json")
	if s := flags.String("history-retention"); s != "" {
		if m.retention, err = caddy.ParseDuration(s); err != nil || m.retention <= 0 {
			return nil, fmt.Errorf("--history-retention: want a duration like 30d, got %q", s)
		}
	}
	adapter := flags.String("adapter")
	if m.from, err = parseStoreSpec(flags.String("from"), adapter); err != nil {
		return nil, fmt.Errorf("--from: %w", err)
	}
	if m.to, err = parseStoreSpec(flags.String("to"), adapter); err != nil {
		return nil, fmt.Errorf("--to: %w", err)
	}
	return m, nil
}

// run opens both stores, copies all data and closes the stores. The copy is durable only if
// closing the target succeeds.
func (m *move) run(ctx context.Context) (err error) {
	from, to, done, err := m.modules(ctx)
	if err != nil {
		return err
	}
	defer done()
	log := slog.New(slog.NewTextHandler(m.err, &slog.HandlerOptions{Level: slog.LevelWarn}))
	source, err := from.Open(log, core.DefaultTunables(), nil)
	if err != nil {
		return fmt.Errorf("--from: %w", err)
	}
	defer func() { err = errors.Join(err, closing("--from", source)) }()
	target, err := to.Open(log, core.DefaultTunables(), nil)
	if err != nil {
		return fmt.Errorf("--to: %w", err)
	}
	report, err := m.migrate(ctx, source, target)
	if err = errors.Join(err, closing("--to", target)); err != nil {
		return err
	}
	return m.print(report)
}

// modules loads the modules of both stores, without opening the stores.
func (m *move) modules(ctx context.Context) (from, to StoreModule, done func(), err error) {
	caddyCtx, done := caddy.NewContext(caddy.Context{Context: ctx})
	if from, err = m.from.load(caddyCtx); err == nil {
		err = isThere(from)
	}
	if err != nil {
		done()
		return nil, nil, nil, fmt.Errorf("--from: %w", err)
	}
	if to, err = m.to.load(caddyCtx); err != nil {
		done()
		return nil, nil, nil, fmt.Errorf("--to: %w", err)
	}
	if from.PoolKey() == to.PoolKey() {
		done()
		return nil, nil, nil, errors.New("--from and --to are the same store")
	}
	return from, to, done, nil
}

// closing closes a store.
func closing(which string, s core.Store) error {
	if err := s.Close(); err != nil {
		return fmt.Errorf("%s: closing the store: %w", which, err)
	}
	return nil
}

// migrate copies all data.
func (m *move) migrate(ctx context.Context, from, to core.Store) (migrate.Report, error) {
	source, ok := from.(core.Importer)
	if !ok {
		return migrate.Report{}, errors.New("--from: this store cannot be copied: want badger or redis")
	}
	target, ok := to.(core.Importer)
	if !ok {
		return migrate.Report{}, errors.New("--to: this store takes no copy: want badger or redis")
	}
	retention := m.retention
	if retention == 0 {
		retention = max(m.from.retention, m.to.retention)
	}
	report, err := migrate.Run(ctx, source, target, migrate.Options{Retention: retention, Progress: m.progress})
	switch {
	case err == nil && report.Accounts == 0:
		err = errors.New("--from: the store has no accounts: there is nothing to move")
	case err == nil || errors.Is(err, migrate.ErrRefused):
	case ctx.Err() != nil:
		err = errors.New("interrupted: run the same command again to go on")
	default:
		fmt.Fprintln(m.err, "Not everything was moved. Run the same command again to go on.")
	}
	return report, err
}

// progress prints a line with the progress.
func (m *move) progress(p migrate.Progress) {
	of := func(c migrate.Count) string { return fmt.Sprintf("%d/%d", c.Done, c.Total) }
	fmt.Fprintf(m.err, "accounts %s  plans %s  users %s  keys %s  histories %s with %d entries  counters %s  compared %s\n",
		of(p.Accounts), of(p.Plans), of(p.Users), of(p.Keys), of(p.Histories), p.Entries.Done, of(p.Counters), of(p.Verified))
}

// print prints the summary.
func (m *move) print(r migrate.Report) error {
	if m.json {
		return json.NewEncoder(m.out).Encode(r)
	}
	_, err := fmt.Fprintf(m.out, `Moved and compared:
accounts       %d
owner's keys   %d
plans          %d
users          %d
keys           %d
used           %d in the latest day of each key and user, %d in the week, %d in the month, %d in the year
history        %s of users, %s of keys
`, r.Accounts, r.OwnerKeys, r.Plans, r.Users, r.Keys, r.Used["day"], r.Used["week"], r.Used["month"], r.Used["year"],
		kept(r.UserHistory), kept(r.KeyHistory))
	return err
}

// kept formats the number of history entries, and the number at the source if the target keeps
// fewer.
func kept(n migrate.HistoryCount) string {
	if n.Target == n.Source {
		return fmt.Sprintf("%d entries", n.Target)
	}
	return fmt.Sprintf("the newest %d of %d entries", n.Target, n.Source)
}
