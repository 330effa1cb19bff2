package caddymodule

import (
	"fmt"

	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	"github.com/spf13/cobra"

	"github.com/limitkeeper/limitkeeper/storage/badgerstore"
)

func init() {
	caddycmd.RegisterCommand(caddycmd.Command{
		Name:      "rebuild",
		Usage:     "--store <store> [--yes]",
		Short:     "Replaces the damaged database of an embedded store by a new one from a copy and the event log",
		Long:      rebuildHelp,
		CobraFunc: rebuildCommand,
	})
}

const rebuildHelp = `
Writes a new database (tables, MANIFEST) for an embedded store from the copy that the
last scrub has made and the event log, and then verifies the store as check does. It
first prints what it will do, and changes nothing without --yes. The files of the old
database are moved to a directory damaged-<time> in that of the store: delete it when
all is well.

Without a copy it needs the whole event log. It refuses when that is damaged, or when
its oldest part was removed.
` + offlineHelp + `
Stop the server that uses the store first.
`

func rebuildCommand(cmd *cobra.Command) { confirmedCommand(cmd, "Replace the database", runRebuild) }

func runRebuild(cmd *cobra.Command, dir string, confirm func([]string) bool) error {
	aside, err := badgerstore.Rebuild(dir, badgerstore.Rebuilding{
		Progress: func(line string) { fmt.Fprintln(cmd.ErrOrStderr(), line) },
		Confirm:  confirm,
	})
	if err != nil || aside == "" {
		return err
	}
	fmt.Fprintln(cmd.OutOrStdout(), "The old database is in", aside)
	return runCheck(cmd, dir)
}
