package caddymodule

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/caddyserver/caddy/v2"
	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	"github.com/spf13/cobra"
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
		dir, done, err := offlineStore(cmd)
		if err != nil {
			return err
		}
		defer done()
		return run(cmd, dir)
	}
	cmd.Flags().String("store", "", "The embedded store: badger:<dir> or config:<file>")
	cmd.Flags().StringP("adapter", "a", "", "The config adapter of config:<file>, if the file is neither a Caddyfile nor JSON")
}

// offlineStore returns the directory of the embedded store that --store names. The store must exist. The caller calls
// done at the end.
func offlineStore(cmd *cobra.Command) (dir string, done func(), err error) {
	flags := caddycmd.Flags{FlagSet: cmd.Flags()}
	store := flags.String("store")
	switch kind, rest, _ := strings.Cut(store, ":"); {
	case store == "":
		return "", nil, errors.New("--store: say which store: badger:<dir> or config:<file>")
	case rest == "" || kind != "badger" && kind != "config":
		return "", nil, fmt.Errorf("--store: want an embedded store: badger:<dir> or config:<file>, got %q", store)
	}
	spec, err := parseStoreSpec(store, flags.String("adapter"))
	if err != nil {
		return "", nil, fmt.Errorf("--store: %w", err)
	}
	ctx, done := caddy.NewContext(caddy.Context{Context: context.Background()})
	m, err := spec.load(ctx)
	if err == nil {
		err = isThere(m)
	}
	b, embedded := m.(*BadgerStore)
	if err == nil && !embedded {
		err = errors.New("want an embedded store: badger:<dir> or a config with one")
	}
	if err != nil {
		done()
		return "", nil, fmt.Errorf("--store: %w", err)
	}
	return b.Dir, done, nil
}

// confirmedCommand is [offlineCommand] for a command that changes the store only with --yes. run gets a function that
// prints the plan, and returns true with --yes.
func confirmedCommand(cmd *cobra.Command, yesHelp string, run func(cmd *cobra.Command, dir string, confirm func([]string) bool) error) {
	offlineCommand(cmd, func(cmd *cobra.Command, dir string) error {
		yes, err := cmd.Flags().GetBool("yes")
		if err != nil {
			return err
		}
		refused := false
		err = run(cmd, dir, func(lines []string) bool {
			for _, line := range lines {
				fmt.Fprintln(cmd.OutOrStdout(), line)
			}
			refused = !yes
			return yes
		})
		if err == nil && refused {
			_, err = fmt.Fprintln(cmd.OutOrStdout(), "Nothing was changed. Run the command again with --yes to do this.")
		}
		return err
	})
	cmd.Flags().Bool("yes", false, yesHelp)
}
