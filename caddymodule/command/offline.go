package command

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/caddyserver/caddy/v2"
	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	"github.com/spf13/cobra"

	"github.com/limitkeeper/limitkeeper/caddymodule"
	"github.com/limitkeeper/limitkeeper/storage/archive"
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

// confirmedCommand is [offlineCommand] for a command that changes the store only with --yes.
func confirmedCommand(cmd *cobra.Command, yesHelp string, run func(cmd *cobra.Command, dir string, yes bool) error) {
	offlineCommand(cmd, func(cmd *cobra.Command, dir string) error {
		return run(cmd, dir, caddycmd.Flags{FlagSet: cmd.Flags()}.Bool("yes"))
	})
	cmd.Flags().Bool("yes", false, yesHelp)
}

// confirm prints the plan of a command, and returns whether to go on: with --yes.
func confirm(cmd *cobra.Command, plan []string, yes bool) bool {
	out := cmd.OutOrStdout()
	for _, line := range plan {
		fmt.Fprintln(out, line)
	}
	if !yes {
		fmt.Fprintln(out, "Nothing was changed. Run the command again with --yes to do this.")
	}
	return yes
}

const checkHelp = `
Reads and verifies all of an embedded store: each table of the database, the event
log, and whether keys, users, plans, lists and counters agree. It prints one line
for each damage, and then the command to run: rebuild or repair. The exit status is
1 when there is damage, and when the restore or import of an account has not finished.
` + offlineHelp + `
Stop the server that uses the store first. Damaged files are not changed.
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
	if err := cmp.Or(c.Err(dir), archive.IncompleteError(c.Incomplete)); err != nil {
		return err
	}
	_, err = fmt.Fprintf(cmd.OutOrStdout(), "The store is whole: %v.\n", c)
	return err
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

func rebuildCommand(cmd *cobra.Command) {
	cmd.Example = "  limitkeeper rebuild --store config:/etc/limitkeeper/Caddyfile --yes"
	confirmedCommand(cmd, "Replace the database", runRebuild)
}

func runRebuild(cmd *cobra.Command, dir string, yes bool) error {
	aside, err := badgerstore.Rebuild(dir, badgerstore.RebuildOptions{
		Progress: func(line string) { fmt.Fprintln(cmd.ErrOrStderr(), line) },
		Confirm:  func(plan []string) bool { return confirm(cmd, plan, yes) },
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

const repairHelp = `
Moves the damaged part of the event log of an embedded store to files whose names
end in .damaged (then .damaged-2), so that the store opens again, and then verifies
the store as check does. It first prints what is in each part and what is lost, with times. Without --yes
it changes nothing.

The unbroken part of the event log with the last checkpoint stays. History before
that part is lost, and counts and changes behind it. If you have a backup that is
newer than the kept part, restore it instead. When the database (tables, MANIFEST) is
damaged, run rebuild, which repairs the event log too.
` + offlineHelp + `
Stop the server that uses the store first.
`

func repairCommand(cmd *cobra.Command) {
	cmd.Example = "  limitkeeper repair --store config:/etc/limitkeeper/Caddyfile --yes"
	confirmedCommand(cmd, "Set the damaged part aside", runRepair)
}

func runRepair(cmd *cobra.Command, dir string, yes bool) error {
	damaged := false
	names, err := badgerstore.Repair(dir, func(plan []string) bool {
		damaged = true
		return confirm(cmd, plan, yes)
	})
	for _, name := range names {
		fmt.Fprintln(cmd.OutOrStdout(), "Set aside as", name)
	}
	if err == nil && !damaged {
		_, err = fmt.Fprintln(cmd.OutOrStdout(), "The event log is whole: there is nothing to repair.")
		return err
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
