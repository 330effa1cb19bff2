package caddymodule

import (
	"fmt"

	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	"github.com/spf13/cobra"

	"github.com/limitkeeper/limitkeeper/storage/badgerstore"
)

func init() {
	caddycmd.RegisterCommand(caddycmd.Command{
		Name:      "repair",
		Usage:     "--store <store> [--yes]",
		Short:     "Sets the damaged part of an event log aside, so that the store opens again",
		Long:      repairHelp,
		CobraFunc: repairCommand,
	})
}

const repairHelp = `
Moves the damaged part of the event log of an embedded store to files whose names
end in .damaged, so that the store opens again. It first prints what is in each
part, and changes nothing without --yes.

The unbroken part of the event log with the last checkpoint stays. History before
that part is lost, and counts and changes behind it. If you have a backup that is
newer than the kept part, restore it instead. A damaged database (tables, MANIFEST)
cannot be repaired: see rebuild.
` + offlineHelp + `
Stop the server that uses the store first.
`

func repairCommand(cmd *cobra.Command) {
	confirmedCommand(cmd, "Set the damaged part aside", runRepair)
}

func runRepair(cmd *cobra.Command, dir string, confirm func([]string) bool) error {
	damaged := false
	names, err := badgerstore.Repair(dir, func(lines []string) bool {
		damaged = true
		return confirm(lines)
	})
	if err == nil && !damaged {
		fmt.Fprintln(cmd.OutOrStdout(), "The event log is whole: there is nothing to repair.")
	}
	for _, name := range names {
		fmt.Fprintln(cmd.OutOrStdout(), "Set aside as", name)
	}
	return err
}
