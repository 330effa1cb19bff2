package archive

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
)

// ImportOptions are the options of [Import].
type ImportOptions struct {
	Account   string        // the name of the only account to import, "" for all
	NoHistory bool          // leaves the entries of the histories out
	EmptyOnly bool          // refuses a target with accounts
	DryRun    bool          // checks the archive and the target, and writes nothing
	Retention time.Duration // of the history: earlier entries are left out; [core.DefaultRetention] by default
	Progress  func(Progress)

	page, entryPage int // resources and entries in one write; small in tests
	now             func() time.Time
}

func (o ImportOptions) withDefaults() ImportOptions {
	o.Retention = cmp.Or(max(0, o.Retention), core.DefaultRetention)
	o.page, o.entryPage = cmp.Or(o.page, defaultPage), cmp.Or(o.entryPage, core.MaxImport)
	if o.now == nil {
		o.now = time.Now
	}
	return o
}

// Report is the result of an import.
type Report struct {
	Accounts []string `json:"accounts"` // the names
	Records  Counts   `json:"records"`  // of the archive: what the options and the ages leave out is not included
	Events   int64    `json:"events"`   // that the target has kept; a store may bound its histories
	SHA256   string   `json:"sha256"`   // of all imported records, in hexadecimal digits

	Unchanged bool `json:"unchanged,omitempty"` // the target had all accounts from an earlier import of the same records; a restore has compared them again
}

// Import writes the records of a source to a store: accounts that the store does not have. It reads the source twice. The first pass
// checks every record; an invalid archive is a [*Problems] or an [ErrDamaged], and nothing is written. The second pass
// writes. At the end Import exports the written accounts and compares them with the source. With EmptyOnly it compares the
// accounts of an earlier import of the same source again.
//
// While Import writes, and after an import that was interrupted, the accounts are marked with an incomplete
// [core.AccountImport]: the service refuses them. The same import may be called again, and then finishes: accounts that are
// complete stay as they are. The store may serve other accounts meanwhile. Of two runs of an import at the same time, the
// later run takes over, and the earlier one fails with [ErrTakenOver].
func Import(ctx context.Context, to core.Importer, from Source, o ImportOptions) (Report, error) {
	r, err := Check(ctx, to, from, o)
	if err != nil || o.DryRun {
		return r, err
	}
	if r.Unchanged && o.EmptyOnly {
		return r, compareAgain(ctx, to, from, o)
	}
	return Write(ctx, to, from, o, r.SHA256)
}

// compareAgain compares the accounts of an earlier restore with the source. A store that has served requests since then differs.
func compareAgain(ctx context.Context, to core.Importer, from Source, o ImportOptions) error {
	w := &writing{to: to, o: o.withDefaults(), digest: newDigest(), again: true}
	f := newFilter(w.o, w, "compare")
	err := from(ctx, f)
	if err == nil {
		_, err = w.compare(ctx, f)
	}
	if errors.Is(err, ErrDiffers) && !errors.Is(err, errNoRoom) {
		return fmt.Errorf("%w: the store has changed since an earlier restore of this archive, and was left as it is. Restore into an empty store", err)
	}
	return err
}

// Check is the first pass of [Import]. Without a target, nil, it checks the records of the source only.
func Check(ctx context.Context, to core.Importer, from Source, o ImportOptions) (Report, error) {
	o = o.withDefaults()
	c, err := newChecker(ctx, to, o.EmptyOnly)
	if err != nil {
		return Report{}, err
	}
	f := newFilter(o, c, "check")
	c.firstDay = f.first
	if err := from(ctx, f); err != nil {
		if c.problems.Total > 0 { // a damaged archive often has invalid records before its cut
			c.at = Record{}
			c.problem("%v", err)
			return Report{}, &c.problems
		}
		return Report{}, err
	}
	if o.Account != "" && len(f.accounts) == 0 && c.problems.Total == 0 {
		return Report{}, fmt.Errorf("%w: the archive has no account %q", ErrRefused, o.Account)
	}
	if err := c.finish(f.all.sum()); err != nil {
		return Report{}, err
	}
	r := f.report()
	r.Unchanged = len(f.accounts) > 0 && c.complete == len(f.accounts)
	return r, nil
}

// Write is the second pass of [Import]. sum is the SHA256 that [Check] returned for the same source, target and options.
func Write(ctx context.Context, to core.Importer, from Source, o ImportOptions, sum string) (Report, error) {
	o = o.withDefaults()
	w := &writing{to: to, o: o, mark: core.AccountImport{SHA256: sum, Run: rand.Text()}, digest: newDigest()}
	f := newFilter(o, w, "write")
	err := from(ctx, f)
	if err == nil {
		err = w.end(ctx)
	}
	if err != nil {
		return Report{}, fmt.Errorf("the import has not finished, and its accounts stay closed. Run the same import again: %w", err)
	}
	if f.all.sum() != sum {
		return Report{}, fmt.Errorf("%w: it was changed between the check and the import", ErrDamaged)
	}
	r := f.report()
	r.Unchanged = len(f.accounts) > 0 && len(w.accounts) == 0
	if r.Events, err = w.compare(ctx, f); err != nil {
		return Report{}, err
	}
	for _, a := range w.accounts {
		_, err := to.UpdateAccount(core.WithAuditTime(ctx, o.now()), a.ID, func(a *core.Account) error {
			if !w.owns(a) {
				return ErrTakenOver
			}
			a.Import = new(core.OrZero(w.numbers[a.ID]))
			a.Import.SHA256, a.Import.Complete = sum, true
			return nil
		})
		if err != nil {
			return Report{}, err
		}
	}
	return r, nil
}

// FromStore returns a source that exports a store.
func FromStore(s core.Importer, o ExportOptions) Source {
	return func(ctx context.Context, to Sink) error {
		accounts, err := accountsOf(ctx, s, o.Account)
		if err != nil {
			return err
		}
		return exportTo(ctx, s, accounts, o, to)
	}
}

// FromArchive returns a source that reads an archive, compressed or not. open opens it from the beginning.
func FromArchive(open func() (io.ReadCloser, error)) Source {
	return func(ctx context.Context, to Sink) (err error) {
		file, err := open()
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, file.Close()) }()
		text, err := Decompress(file)
		if err != nil {
			return fmt.Errorf("%w: %w", ErrDamaged, err)
		}
		defer text.Close()
		r, err := NewReader(text)
		for err == nil {
			var next Record
			if next, err = r.Next(); err == nil {
				err = to.Put(ctx, next)
			}
		}
		if err == io.EOF {
			return nil
		}
		return err
	}
}
