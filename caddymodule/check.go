package caddymodule

import (
	"context"
	"errors"
	"fmt"

	"github.com/caddyserver/caddy/v2"
	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	"github.com/spf13/cobra"

	"github.com/limitkeeper/limitkeeper/storage/badgerstore"
)

func init() {
	caddycmd.RegisterCommand(caddycmd.Command{
		Name:      "check",
		Usage:     "--store <store>",
		Short:     "Verifies everything in an embedded store that no server has open",
		Long:      checkHelp,
		CobraFunc: checkCommand,
	})
}

const checkHelp = `
Reads all of an embedded store and verifies it: each table of the database, the
event log, and whether keys, users, plans, lists and counters agree. It prints one
line for each damaged thing, and the exit status is 1 if there is any.

A store is one of
	badger:<dir>     the embedded store in a directory; that of protect is
	                 limitkeeper, in the directory of --data
	config:<file>    the embedded store that a Caddyfile or JSON configures

Stop the server that uses the store first. Damaged files are left as they are.
`

func checkCommand(cmd *cobra.Command) { offlineCommand(cmd, runCheck) }

// offlineCommand adds to a command for an embedded store that is not open its flags and what it runs, with the
// directory of the store.
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
	cmd.Flags().StringP("adapter", "a", "", "The config adapter of config:<file>, if it is no Caddyfile and no JSON")
}

// offlineStore returns the directory of the embedded store that --store names, which exists.
func offlineStore(cmd *cobra.Command) (dir string, done func(), err error) {
	flags := caddycmd.Flags{FlagSet: cmd.Flags()}
	spec, err := parseStoreSpec(flags.String("store"), flags.String("adapter"))
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

func runCheck(cmd *cobra.Command, dir string) error {
	c, err := badgerstore.Check(dir, badgerstore.Checking{
		Progress: func(line string) { fmt.Fprintln(cmd.ErrOrStderr(), line) },
		Damage:   func(damage error) { fmt.Fprintln(cmd.OutOrStdout(), damage) },
	})
	if err != nil {
		return err
	}
	if c.Damaged > 0 {
		return fmt.Errorf("the store in %s is damaged in %d places: see limitkeeper rebuild --help or limitkeeper repair --help, or restore a backup", dir, c.Damaged)
	}
	_, err = fmt.Fprintf(cmd.OutOrStdout(), "The store is whole: %d tables, %d segments with %d events, %d records, %d bytes.\n",
		c.Tables, c.Segments, c.Events, c.Records, c.Bytes)
	return err
}
