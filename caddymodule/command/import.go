package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/spf13/cobra"

	"github.com/limitkeeper/limitkeeper/caddymodule"
	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/archive"
)

const restoreHelp = `
Writes the accounts of a backup to an empty store, and compares the store with the
backup. The whole file is checked before anything is written. An interrupted restore
leaves a store whose accounts the server refuses: run the same restore again.

A store is badger:<dir>, redis:<address>[,<address>…] or config:<file>. No server uses it.
`

const importHelp = `
Adds the accounts of a file that export or backup has written to a store that does not
have them. The whole file is checked before anything is written: each invalid line is
named with its number and the reason, and then nothing is changed. At the end the
store is compared with the file. An interrupted import leaves accounts that the server
refuses: run the same import again.
` + importKeysHelp + archiveHelp

func importCommand(cmd *cobra.Command) {
	cmd.Example = `  limitkeeper import acme.ndjson --dry-run
  limitkeeper import backup.zst --account acme
  limitkeeper import --csv keys.csv --account acme --dry-run`
	archiveFlags(cmd, true)
	cmd.Flags().String("account", "", "The name of the only account to import, or of the account that gets the keys of --csv")
	cmd.Flags().String("csv", "", "A CSV file with keys of another system, in place of FILE")
	cmd.Flags().StringSlice("key-prefix", nil, "With --csv: a prefix of the keys that the file has only by digest, such as acme_")
	cmd.Flags().Bool("no-history", false, "Leave the entries of the histories out")
	cmd.Flags().Bool("dry-run", false, "Check the file and the store, and write nothing")
	cmd.Args = cobra.MaximumNArgs(1)
	withSignals(cmd, func(ctx caddy.Context, t *transfer, args []string) error {
		if keys := t.flags.String("csv") != ""; keys == (len(args) == 1) {
			return errors.New("name either an archive, or with --csv a file of keys")
		}
		if len(args) == 0 {
			return t.importKeyFile(ctx)
		}
		if strings.EqualFold(filepath.Ext(args[0]), ".csv") {
			return fmt.Errorf("%s is no archive: keys in CSV are imported with --csv, as in limitkeeper import --csv %[1]s --account NAME", args[0])
		}
		o := archive.ImportOptions{Account: t.flags.String("account"), NoHistory: t.flags.Bool("no-history"), DryRun: t.flags.Bool("dry-run")}
		return t.importFile(ctx, args[0], t.flags.String("store"), o)
	})
}

func restoreCommand(cmd *cobra.Command) {
	cmd.Example = "  limitkeeper restore limitkeeper-2026-11-23.zst --store config:/etc/limitkeeper/Caddyfile"
	archiveFlags(cmd, false)
	cmd.Flags().String("store", "", "The empty store: badger:<dir>, redis:<address> or config:<file>")
	cmd.Args = oneFile("the backup to restore")
	withSignals(cmd, func(ctx caddy.Context, t *transfer, args []string) error {
		store := t.flags.String("store")
		if store == "" {
			return errors.New("--store: name the empty store: badger:<dir>, redis:<address> or config:<file>")
		}
		return t.importFile(ctx, args[0], store, archive.ImportOptions{EmptyOnly: true})
	})
}

// importPath is the path of an import on the admin endpoint.
const importPath = "import"

// importFile imports a file into a store, or into the store of a running server.
func (t *transfer) importFile(ctx caddy.Context, name, store string, o archive.ImportOptions) (err error) {
	if _, err := os.Stat(name); err != nil {
		return fmt.Errorf("%s: %s", name, lastPart(err.Error()))
	}
	o.Progress = t.progress.show
	var report archive.Report
	if store == "" {
		report, err = t.importServer(name, o)
	} else {
		report, err = t.importStore(ctx, name, store, o)
	}
	if err != nil {
		return err
	}
	done := "Imported and compared"
	switch {
	case report.Unchanged && o.EmptyOnly:
		done = "Nothing to do: an earlier restore wrote this backup, and the store still equals it. Its accounts"
	case report.Unchanged:
		done = "Nothing to do, and changes since then stay: an earlier import of this archive created the accounts"
	case o.DryRun:
		done = "Nothing was written. The import would add"
	}
	return t.summary(done, report)
}

// importStore imports a file into a store that no server uses.
func (t *transfer) importStore(ctx caddy.Context, name, store string, o archive.ImportOptions) (r archive.Report, err error) {
	n, err := t.named(ctx, "--store", store, false)
	if err != nil {
		return r, err
	}
	o.Retention = n.retention
	from := archive.FromArchive(func() (io.ReadCloser, error) { return os.Open(name) })
	if err := isThere(n.module); err != nil { // the file is checked before the store is created
		if r, err = archive.Check(ctx, nil, from, o); err != nil || o.DryRun {
			return r, err
		}
	}
	err = t.use(n, func(s core.Importer) error {
		if r.SHA256 != "" { // the check of an empty store
			r, err = archive.Write(core.WithActor(ctx, t.actor), s, from, o, r.SHA256)
		} else {
			r, err = archive.Import(core.WithActor(ctx, t.actor), s, from, o)
		}
		return err
	})
	return r, err
}

// importServer lets a running server import a file: it sends the file once to be checked, and once to be written.
func (t *transfer) importServer(name string, o archive.ImportOptions) (r archive.Report, err error) {
	q := archiveQuery(o.Account, o.NoHistory)
	if err = t.upload(name, importPath, q, archive.Progress{Pass: "check"}, &r); err != nil || o.DryRun {
		return r, err
	}
	q.Set("sha256", r.SHA256)
	r = archive.Report{}
	err = t.upload(name, importPath, q, archive.Progress{Pass: "write"}, &r)
	return r, err
}

// upload sends the lines of a file to a running server, shows the progress, and decodes the answer. It returns at once when the command is
// interrupted: the server stops when the process has ended, with the lines that it has written.
func (t *transfer) upload(name, path string, q url.Values, p archive.Progress, answer any) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	text, err := archive.Decompress(f)
	if err != nil {
		return fmt.Errorf("%w: %w", archive.ErrDamaged, err)
	}
	defer text.Close()
	body := &countedLines{ctx: t.ctx, r: text, show: func(n int64) {
		p.Records = n
		t.progress.show(p)
	}}
	return t.fetch(http.MethodPost, adminBase+path+"?"+q.Encode(), body, answer)
}

// countedLines is a reader that shows how many lines were read.
type countedLines struct {
	ctx  context.Context
	r    io.Reader
	n    int64
	show func(int64)
}

func (c *countedLines) Read(p []byte) (int, error) {
	if err := c.ctx.Err(); err != nil {
		return 0, err
	}
	n, err := c.r.Read(p)
	c.n += int64(strings.Count(string(p[:n]), "\n"))
	c.show(c.n)
	return n, err
}

// importArchive checks an archive in the body of a request. With the SHA-256 that the check has returned, it writes the
// archive.
func importArchive(running *caddymodule.OpenStore, r *http.Request) (any, error) {
	to, err := importerOf(running.Store)
	if err != nil {
		return nil, err
	}
	q := r.URL.Query()
	o := archive.ImportOptions{Account: q.Get("account"), NoHistory: q.Get("history") == "false", Retention: running.Retention}
	from := archive.FromArchive(func() (io.ReadCloser, error) { return r.Body, nil })
	sum := q.Get("sha256")
	if sum == "" {
		report, err := archive.Check(r.Context(), to, from, o)
		return report, badArchive(err)
	}
	defer running.Service.ForgetAll()
	report, err := archive.Write(r.Context(), to, from, o, sum)
	return report, badArchive(err)
}

// badArchive adds the HTTP status to an error of an import.
func badArchive(err error) error {
	if errors.Is(err, archive.ErrRefused) || errors.Is(err, archive.ErrDamaged) {
		return caddy.APIError{HTTPStatus: http.StatusBadRequest, Err: err}
	}
	return err
}
