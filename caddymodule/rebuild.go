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

Without a copy it needs the whole event log. It refuses when the event log is damaged,
and, without a copy, when the oldest part of the event log was removed.
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
