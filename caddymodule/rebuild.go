package caddymodule

import (
	"errors"
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

A store is one of
	badger:<dir>     the embedded store in a directory; that of protect is
	                 limitkeeper, in the directory of --data
	config:<file>    the embedded store that a Caddyfile or JSON configures

Stop the server that uses the store first.
`

func rebuildCommand(cmd *cobra.Command) {
	offlineCommand(cmd, runRebuild)
	cmd.Flags().Bool("yes", false, "Replace the database")
}

func runRebuild(cmd *cobra.Command, dir string) error {
	yes, err := cmd.Flags().GetBool("yes")
	if err != nil {
		return err
	}
	aside, err := badgerstore.Rebuild(dir, badgerstore.Rebuilding{
		Progress: func(line string) { fmt.Fprintln(cmd.ErrOrStderr(), line) },
		Confirm: func(lines []string) bool {
			for _, line := range lines {
				fmt.Fprintln(cmd.OutOrStdout(), line)
			}
			return yes
		},
	})
	switch {
	case err != nil:
		return err
	case !yes:
		return errors.New("nothing was changed: run the command again with --yes to do this")
	}
	fmt.Fprintln(cmd.OutOrStdout(), "The old database is in", aside)
	return runCheck(cmd, dir)
}
