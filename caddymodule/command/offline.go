package command

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/caddyserver/caddy/v2"
	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	"github.com/spf13/cobra"

	"github.com/limitkeeper/limitkeeper/caddymodule"
	"github.com/limitkeeper/limitkeeper/storage/badgerstore"
)

// offlineHelp is the part of the help that all commands for a stopped embedded store share.
const offlineHelp = `
A store is one of
	badger:<dir>     the embedded store in a directory; the store of protect
	                 is in limitkeeper, in the directory of --data
	config:<file>    the embedded store that a Caddyfile or JSON configures
`

// offlineCommand makes cmd a command for a stopped embedded store: it adds the flags that name the store, and calls
// run with the directory of the store.
func offlineCommand(cmd *cobra.Command, run func(cmd *cobra.Command, dir string) error) {
	cmd.Args = cobra.NoArgs
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		dir, err := offlineStore(cmd)
		if err != nil {
			return err
		}
		return run(cmd, dir)
	}
	cmd.Flags().String("store", "", "The embedded store: badger:<dir> or config:<file>")
	cmd.Flags().StringP("adapter", "a", "", "The config adapter of config:<file>, if the file is neither a Caddyfile nor JSON")
}

// offlineStore returns the directory of the embedded store that --store names. The store must exist.
func offlineStore(cmd *cobra.Command) (dir string, err error) {
	flags := caddycmd.Flags{FlagSet: cmd.Flags()}
	store := flags.String("store")
	switch kind, rest, _ := strings.Cut(store, ":"); {
	case store == "":
		return "", errors.New("--store: say which store: badger:<dir> or config:<file>")
	case rest == "" || kind != "badger" && kind != "config":
		return "", fmt.Errorf("--store: want an embedded store: badger:<dir> or config:<file>, got %q", store)
	}
	ctx, done := caddy.NewContext(caddy.Context{Context: context.Background()})
	defer done()
	n, err := loadNamed(ctx, "--store", store, flags.String("adapter"), true)
	if err != nil {
		return "", err
	}
	b, embedded := n.module.(*caddymodule.BadgerStore)
	if !embedded {
		return "", errors.New("--store: want an embedded store: badger:<dir> or a config with one")
	}
	return b.Dir, nil
}

const checkHelp = `
Reads and verifies every file of an embedded store: each table and each image of the
database, and the event log. It prints one line for each damage. The next start
rebuilds a damaged database from the event log; the command repair mends the event
log itself. The exit status is 1 when there is damage.
` + offlineHelp + `
Stop the server that uses the store first. No file is changed.
`

func checkCommand(cmd *cobra.Command) {
	cmd.Example = "  limitkeeper check --store badger:/var/lib/limitkeeper"
	offlineCommand(cmd, runCheck)
}

func runCheck(cmd *cobra.Command, dir string) error {
	c, err := badgerstore.Check(dir, badgerstore.CheckOptions{
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

const repairHelp = `
Accepts what damage of the event log of an embedded store has cost, so that the
store opens again, and then verifies the store as check does. It first prints what
cannot be read, what is kept and what is lost, with times. Without --yes it changes
nothing.

Of old damage only the history is lost, from the damage backwards. Behind damage
that the database and its images do not cover, everything is lost. If you have a
backup that is newer than what is kept, restore it instead. Lost files are kept
under names that end in .damaged (then .damaged-2).
` + offlineHelp + `
Stop the server that uses the store first.
`

func repairCommand(cmd *cobra.Command) {
	cmd.Example = "  limitkeeper repair --store config:/etc/limitkeeper/Caddyfile --yes"
	offlineCommand(cmd, runRepair)
	cmd.Flags().Bool("yes", false, "Accept the loss")
}

func runRepair(cmd *cobra.Command, dir string) error {
	yes, out, damaged := caddycmd.Flags{FlagSet: cmd.Flags()}.Bool("yes"), cmd.OutOrStdout(), false
	names, err := badgerstore.Repair(dir, func(plan []string) bool {
		damaged = true
		for _, line := range plan {
			fmt.Fprintln(out, line)
		}
		if !yes {
			fmt.Fprintln(out, "Nothing was changed. Run the command again with --yes to do this.")
		}
		return yes
	})
	for _, name := range names {
		fmt.Fprintln(out, "Set aside as", name)
	}
	if err == nil && !damaged {
		_, err = fmt.Fprintln(out, "The event log is whole: there is nothing to repair.")
		return err
	}
	if err != nil || !yes {
		return err
	}
	if err := runCheck(cmd, dir); err != nil {
		return err
	}
	_, err = fmt.Fprintln(out, "The event log is repaired. Start the server.")
	return err
}
