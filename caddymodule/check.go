package caddymodule

import (
	"fmt"

	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	"github.com/spf13/cobra"

	"github.com/limitkeeper/limitkeeper/storage/badgerstore"
)

func init() {
	caddycmd.RegisterCommand(caddycmd.Command{
		Name:      "check",
		Usage:     "--store <store>",
		Short:     "Verifies every file of a stopped embedded store",
		Long:      checkHelp,
		CobraFunc: checkCommand,
	})
}

const checkHelp = `
Reads and verifies all of an embedded store: each table of the database, the event
log, and whether keys, users, plans, lists and counters agree. It prints one line
for each damage, and then the command that mends it: rebuild or repair. The exit
status is 1 when there is damage.
` + offlineHelp + `
Stop the server that uses the store first. Damaged files are not changed.
`

func checkCommand(cmd *cobra.Command) { offlineCommand(cmd, runCheck) }

func runCheck(cmd *cobra.Command, dir string) error {
	c, err := badgerstore.Check(dir, badgerstore.Checking{
		Progress: func(line string) { fmt.Fprintln(cmd.ErrOrStderr(), line) },
		Damage:   func(damage error) { fmt.Fprintln(cmd.OutOrStdout(), damage) },
	})
	if err != nil {
		return err
	}
	if err := c.Err(dir); err != nil {
		return err
	}
	_, err = fmt.Fprintf(cmd.OutOrStdout(), "The store is whole: %v.\n", c)
	return err
}
