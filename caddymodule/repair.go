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
		Name:      "repair",
		Usage:     "--store <store> [--yes]",
		Short:     "Sets the damaged part of an event log aside, so that its store opens",
		Long:      repairHelp,
		CobraFunc: repairCommand,
	})
}

const repairHelp = `
Sets the damaged part of the event log of an embedded store aside, into files whose
names end in .damaged, so that the store opens again. It first prints what is in
that part, and changes nothing without --yes.

The part of the event log with the last checkpoint stays. History before that part
is lost, and the counts of events behind it. A backup that is newer is better.
A damaged database (tables, MANIFEST) cannot be repaired: see rebuild.

A store is one of
	badger:<dir>     the embedded store in a directory; that of protect is
	                 limitkeeper, in the directory of --data
	config:<file>    the embedded store that a Caddyfile or JSON configures

Stop the server that uses the store first.
`

func repairCommand(cmd *cobra.Command) {
	offlineCommand(cmd, runRepair)
	cmd.Flags().Bool("yes", false, "Set the damaged part aside")
}

func runRepair(cmd *cobra.Command, dir string) error {
	yes, err := cmd.Flags().GetBool("yes")
	if err != nil {
		return err
	}
	damaged := false
	names, err := badgerstore.Repair(dir, func(lines []string) bool {
		damaged = true
		for _, line := range lines {
			fmt.Fprintln(cmd.OutOrStdout(), line)
		}
		return yes
	})
	switch {
	case err != nil:
		return err
	case !damaged:
		fmt.Fprintln(cmd.OutOrStdout(), "The event log is whole: there is nothing to repair.")
	case !yes:
		return errors.New("nothing was changed: run the command again with --yes to set this aside")
	}
	for _, name := range names {
		fmt.Fprintln(cmd.OutOrStdout(), "Set aside as", name)
	}
	return nil
}
