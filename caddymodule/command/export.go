package command

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"

	"github.com/caddyserver/caddy/v2"
	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"
	"golang.org/x/time/rate"

	"github.com/limitkeeper/limitkeeper/caddymodule"
	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/archive"
)

const backupHelp = `
Writes all accounts with their owner's keys, sign-in data, prices, plans, users, keys, counters,
days and histories to FILE. The server goes on serving. The file is as of one instant;
on Redis each counter has an instant of its own. FILE is compressed if its name ends in
.gz or .zst. It replaces an earlier FILE when it is complete. The file has no secrets,
only digests of them.
` + archiveHelp

const exportHelp = `
Writes all accounts, or one, to FILE or to the standard output. The format is that of
backup. The same store gives the same lines, but for the first and the last.
` + archiveHelp

func backupCommand(cmd *cobra.Command) {
	cmd.Example = `  limitkeeper backup /backup/limitkeeper-$(date +%F).zst
  limitkeeper backup nightly.zst --rate 10MB`
	archiveFlags(cmd, true)
	cmd.Flags().String("rate", "", "The most bytes to write in a second, such as 10MB, before compression")
	cmd.Args = oneFile("the file to write")
	withSignals(cmd, func(ctx caddy.Context, t *transfer, args []string) error {
		return t.export(ctx, args[0], archive.ExportOptions{})
	})
}

func exportCommand(cmd *cobra.Command) {
	cmd.Example = `  limitkeeper export --account acme acme.ndjson
  limitkeeper export --no-history | grep '^{"plan"'`
	archiveFlags(cmd, true)
	cmd.Flags().String("account", "", "The name of the only account")
	cmd.Flags().Bool("no-history", false, "Leave the entries of the histories out")
	cmd.Flags().String("rate", "", "The most bytes to write in a second, such as 10MB, before compression")
	cmd.Args = cobra.MaximumNArgs(1)
	withSignals(cmd, func(ctx caddy.Context, t *transfer, args []string) error {
		return t.export(ctx, append(args, "-")[0], archive.ExportOptions{Account: t.flags.String("account"), NoHistory: t.flags.Bool("no-history")})
	})
}

// export writes an archive to a file, or to the standard output for "-".
func (t *transfer) export(ctx caddy.Context, name string, o archive.ExportOptions) error {
	limit, err := t.rate()
	if err != nil {
		return err
	}
	o.Progress = t.progress.show
	var counts archive.Counts
	write := func(w io.Writer) (err error) {
		w = &slowWriter{ctx, w, limit}
		store := t.flags.String("store")
		if store == "" {
			counts, err = t.exportServer(ctx, w, o)
			return err
		}
		n, err := t.named(ctx, "--store", store, true)
		if err != nil {
			return err
		}
		return t.use(n, func(s core.Importer) error {
			counts, err = archive.Export(ctx, s, w, o)
			return err
		})
	}
	if name == "-" {
		return write(t.cmd.OutOrStdout())
	}
	err = writeFile(name, func(w io.Writer) error {
		if err := write(w); err != nil || counts[archive.KindAccount] > 0 {
			return err
		}
		return errors.New("the store has no accounts: nothing was written")
	})
	if err != nil {
		return err
	}
	return t.summary(fmt.Sprintf("Wrote %s", name), archive.Report{Records: counts, Events: counts[archive.KindEvent]})
}

// exportServer lets a running server export its store.
func (t *transfer) exportServer(ctx context.Context, w io.Writer, o archive.ExportOptions) (archive.Counts, error) {
	resp, err := t.request(http.MethodGet, adminBase+"export?"+archiveQuery(o.Account, o.NoHistory).Encode(), nil)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	stop := context.AfterFunc(ctx, func() { resp.Body.Close() })
	defer stop()
	return archive.Copy(w, resp.Body, func(n int64) { t.progress.show(archive.Progress{Pass: "export", Records: n}) })
}

// rate returns the limiter of --rate.
func (t *transfer) rate() (*rate.Limiter, error) {
	text := t.flags.String("rate")
	if text == "" {
		return rate.NewLimiter(rate.Inf, slowChunk), nil
	}
	n, err := humanize.ParseBytes(text)
	if err != nil || n == 0 || n > 1<<40 {
		return nil, fmt.Errorf("--rate: want bytes in a second, such as 10MB, got %q", text)
	}
	return rate.NewLimiter(rate.Limit(n), slowChunk), nil
}

// slowChunk is the largest number of bytes that a slowWriter writes at once.
const slowChunk = 64 << 10

// slowWriter writes at most as fast as its limiter allows.
type slowWriter struct {
	ctx   context.Context
	w     io.Writer
	limit *rate.Limiter
}

func (w *slowWriter) Write(p []byte) (n int, err error) {
	for part := range slices.Chunk(p, slowChunk) {
		if err := w.limit.WaitN(w.ctx, len(part)); err != nil {
			return n, err
		}
		written, err := w.w.Write(part)
		n += written
		if err != nil {
			return n, err
		}
	}
	return n, nil
}

// writeFile replaces a file when write has succeeded. The content is compressed as the name says. A symbolic link stays, and the
// file that it names is replaced.
func writeFile(name string, write func(io.Writer) error) (err error) {
	target := name
	if there, err := filepath.EvalSymlinks(name); err == nil {
		if i, err := os.Stat(there); err != nil || !i.Mode().IsRegular() {
			return errors.Join(err, fmt.Errorf("%s is not a file: name a file, or - for the standard output", name))
		}
		target = there
	}
	if _, err := os.Stat(filepath.Dir(target)); errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("there is no directory %s: create it first", filepath.Dir(target))
	}
	f, err := os.CreateTemp(filepath.Dir(target), filepath.Base(target)+".partial-*") // its mode is 0600
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, f.Close(), os.Remove(f.Name()))
		}
	}()
	z, err := archive.Compress(name, f)
	if err != nil {
		return err
	}
	for _, step := range []func() error{
		func() error { return write(z) }, z.Close, f.Sync, func() error { return os.Rename(f.Name(), target) },
	} {
		if err := step(); err != nil {
			return err
		}
	}
	return errors.Join(f.Close(), syncDir(filepath.Dir(target)))
}

// syncDir makes a renamed file durable.
func syncDir(name string) error {
	d, err := os.Open(name)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// exportArchive streams an archive of the store.
func exportArchive(running *caddymodule.OpenStore, r *http.Request) (any, error) {
	s, err := importerOf(running.Store)
	if err != nil {
		return nil, err
	}
	q := r.URL.Query()
	o := archive.ExportOptions{Account: q.Get("account"), NoHistory: q.Get("history") == "false"}
	if o.Account != "" {
		if _, err := running.Service.OperatorAccount(r.Context(), o.Account); err != nil {
			return nil, err
		}
	}
	return stream(func(w io.Writer) error {
		counts, err := exportServing(r.Context(), s, w, o)
		if err != nil && counts != nil { // the answer has begun: its status can no longer tell of the error
			return archive.WriteError(w, err)
		}
		return adminError(err)
	}), nil
}

// exportServing is [archive.Export] of a store that serves, as of one instant if the store can.
func exportServing(ctx context.Context, s core.Importer, w io.Writer, o archive.ExportOptions) (
	counts archive.Counts, err error) {
	if of, ok := s.(core.SnapshotStore); ok {
		snapshot, failed := of.Snapshot(ctx)
		if failed != nil {
			return nil, fmt.Errorf("a snapshot of the store: %w", failed)
		}
		defer func() { err = cmp.Or(snapshot.Close(), err) }() // the reason why the snapshot has ended comes first
		s = snapshot
	}
	return archive.Export(ctx, s, w, o)
}
