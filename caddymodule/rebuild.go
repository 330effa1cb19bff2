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
		Short:     "Replaces a damaged database with a new one from the checkpoint copy and the event log",
		Long:      rebuildHelp,
		CobraFunc: rebuildCommand,
	})
}

const rebuildHelp = `
Writes a new database (tables, MANIFEST) for an embedded store, and then verifies the
store as check does. The new database is the copy that the last scrub has written,
with all later records of the event log. It first prints the plan, and changes
nothing without --yes. It moves the files of the old database to a directory
damaged-<time> in the directory of the store. Delete that directory when all is well.

Without a copy it needs the whole event log, from the first record of the store on. With
a copy it repairs a damaged event log too, and prints what is lost. It leaves a whole
database alone, and refuses when the disk has no room for another database.
` + offlineHelp + `
Stop the server that uses the store first.
`

func rebuildCommand(cmd *cobra.Command) { confirmedCommand(cmd, "Replace the database", runRebuild) }

func runRebuild(cmd *cobra.Command, dir string, confirm func([]string) bool) error {
	yes := false
	aside, err := badgerstore.Rebuild(dir, badgerstore.Rebuilding{
		Progress: func(line string) { fmt.Fprintln(cmd.ErrOrStderr(), line) },
		Confirm: func(lines []string) bool {
			yes = confirm(lines)
			return yes
		},
	})
	if err != nil || !yes {
		return err
	}
	if aside == "" {
		_, err := fmt.Fprintln(cmd.OutOrStdout(), "The database is whole: there is nothing to rebuild.")
		return err
	}
	fmt.Fprintln(cmd.OutOrStdout(), "The old database is in", aside)
	return checkRepaired(cmd, dir, "The database is rebuilt. Delete the old database when all is well.")
}
