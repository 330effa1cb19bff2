package archive

import (
	"context"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
)

// filter passes the records on that the options select, and reports the progress.
type filter struct {
	o        ImportOptions
	to       Sink
	pass     string
	first    core.Date // the first day that is passed on
	hour     core.Date // the first hour that is passed on
	since    time.Time // earlier entries are not passed on
	audit    time.Time // earlier entries of audit logs are not passed on
	accounts []string  // the names of the selected accounts
	skip     bool      // the present account is not selected
	progress Progress

	all  *digest // of all records of the selected accounts: it identifies an import
	kept Counts  // the records that were passed on
}

// newFilter returns a filter. The target keeps what the filter passes on until the import has ended: [margin].
func newFilter(o ImportOptions, to Sink, pass string) *filter {
	now := o.now()
	return &filter{o: o, to: to, pass: pass, first: core.DateOf(now) - core.DaysKept + 2,
		hour: core.FirstHourKept(now.Add(margin)), since: now.Add(-o.Retention), audit: now.Add(-core.AuditRetention),
		all: newDigest(), kept: Counts{}}
}

// margin is longer than an import takes. The target keeps imported entries for this much longer than the retention. newFilter leaves out hours that
// expire within this time.
const margin = 24 * time.Hour

func (f *filter) report() Report {
	return Report{Accounts: f.accounts, Records: f.kept, SHA256: f.all.sum()}
}

// Put implements [Sink].
func (f *filter) Put(ctx context.Context, r Record) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	f.progress.Pass, f.progress.Records = f.pass, f.progress.Records+1
	if a, ok := r.Value.(*Account); ok {
		f.progress.Account = a.Name
		if f.skip = f.o.Account != "" && a.Name != f.o.Account; !f.skip {
			f.accounts = append(f.accounts, a.Name)
		}
	}
	if f.o.Progress != nil {
		f.o.Progress(f.progress)
	}
	if r.Err != nil {
		return f.to.Put(ctx, r)
	}
	if f.skip {
		return nil
	}
	var err error
	if r.line, err = encode(r.Kind, r.Value); err != nil { // a time that is outside of the years 0 to 9999 in UTC
		r.Err = err
		return f.to.Put(ctx, r)
	}
	f.all.add(r.Kind, r.line)
	if f.leavesOut(r) {
		return nil
	}
	f.kept[r.Kind]++
	return f.to.Put(ctx, r)
}

// leavesOut reports whether a record is too old, or of a history that is not wanted.
func (f *filter) leavesOut(r Record) bool {
	switch v := r.Value.(type) {
	case *Day:
		return v.Date < f.first || v.Date.IsHour() && v.Date < f.hour
	case *Event:
		return f.o.NoHistory || !v.At.After(f.since)
	case *Audit:
		return !v.At.After(f.audit)
	}
	return false
}
