package command

import (
	"errors"
	"fmt"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/spf13/cobra"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/archive"
)

const migrateHelp = `
Copies accounts, owner's keys, sign-in data, prices, plans, users, keys, counters, days and
histories from the store --from to the store --to, which is empty. All keys keep their
values. Request ids are not copied: a request that is repeated afterwards counts again.

A store is badger:<dir>, redis:<address>[,<address>…] or config:<file>.

Stop all servers that use either store first. Start them with the new store after the
command has succeeded: it has then compared all data of both stores. The store --from is
not changed. If the command is interrupted, run it again.

--history-retention limits the age of the copied history. The default is the configured
history_retention if a config is given, or else 30 days.
`

func migrateCommand(cmd *cobra.Command) {
	cmd.Example = "  limitkeeper migrate --from badger:/var/lib/limitkeeper --to config:Caddyfile"
	archiveFlags(cmd, false)
	cmd.Flags().String("from", "", "The store to copy from")
	cmd.Flags().String("to", "", "The empty store to copy to")
	cmd.Flags().String("history-retention", "", "Maximum age of the copied history, such as 30d")
	cmd.Args = cobra.NoArgs
	withSignals(cmd, func(ctx caddy.Context, t *transfer, _ []string) error { return t.migrate(ctx) })
}

// migrate copies one store to another.
func (t *transfer) migrate(ctx caddy.Context) error {
	var retention time.Duration
	if s := t.flags.String("history-retention"); s != "" {
		var err error
		if retention, err = caddy.ParseDuration(s); err != nil || retention <= 0 {
			return fmt.Errorf("--history-retention: want a duration like 30d, got %q", s)
		}
	}
	from, err := t.named(ctx, "--from", t.flags.String("from"), true)
	if err != nil {
		return err
	}
	to, err := t.named(ctx, "--to", t.flags.String("to"), false)
	if err != nil {
		return err
	}
	if from.module.PoolKey() == to.module.PoolKey() {
		return errors.New("--from and --to are the same store")
	}
	if retention == 0 {
		retention = max(from.retention, to.retention)
	}
	var report archive.Report
	err = t.use(from, func(source core.Importer) error {
		if _, n, err := source.Accounts(ctx, core.Page{Number: 1, Size: 1}); err != nil || n == 0 {
			return errors.Join(err, errors.New("--from: the store has no accounts: there is nothing to copy"))
		}
		return t.use(to, func(target core.Importer) error {
			report, err = archive.Import(core.WithActor(ctx, t.actor), target, archive.FromStore(source, archive.ExportOptions{}),
				archive.ImportOptions{Retention: retention, EmptyOnly: true, Progress: t.progress.show})
			return err
		})
	})
	if err != nil {
		return err
	}
	summary := "Copied and compared"
	if report.Unchanged {
		summary = "Nothing to do: an earlier run copied everything, and the stores are still equal. Their accounts"
	}
	return t.summary(summary, report)
}
