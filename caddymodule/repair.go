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
end in .damaged, so that the store opens again, and then verifies the store as check
does. It first prints what is in each part and what is lost, with times. Without --yes
it changes nothing.

The unbroken part of the event log with the last checkpoint stays. History before
that part is lost, and counts and changes behind it. If you have a backup that is
newer than the kept part, restore it instead. When the database (tables, MANIFEST) is
damaged, run rebuild, which repairs the event log too.
` + offlineHelp + `
Stop the server that uses the store first.
`

func repairCommand(cmd *cobra.Command) {
	confirmedCommand(cmd, "Set the damaged part aside", runRepair)
}

func runRepair(cmd *cobra.Command, dir string, confirm func([]string) bool) error {
	damaged, yes := false, false
	names, err := badgerstore.Repair(dir, func(lines []string) bool {
		damaged, yes = true, confirm(lines)
		return yes
	})
	for _, name := range names {
		fmt.Fprintln(cmd.OutOrStdout(), "Set aside as", name)
	}
	if err == nil && !damaged {
		fmt.Fprintln(cmd.OutOrStdout(), "The event log is whole: there is nothing to repair.")
	}
	if err != nil || !yes {
		return err
	}
	return checkRepaired(cmd, dir, "The event log is repaired.")
}

// checkRepaired ends a command that has repaired a store: it verifies the store, and says what to do next.
func checkRepaired(cmd *cobra.Command, dir, done string) error {
	if err := runCheck(cmd, dir); err != nil {
		return err
	}
	_, err := fmt.Fprintln(cmd.OutOrStdout(), done, "Start the server.")
	return err
}
