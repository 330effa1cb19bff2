package eventlog

import (
	"cmp"
	"errors"
	"os"
)

// Report is the result of [Verify].
type Report struct {
	Segments, Records int
	Bytes             int64 // of all segments
	From              int64 // the first position of the log
	End               int64 // the position after the last byte that is known to have been written
	Runs              []Run // oldest first
	Torn              Torn
	Damage            []*DamageError // empty for an undamaged log
}

// Run is a part of a log, between two positions, in which every record can be read. A whole log is one run.
type Run struct{ From, To int64 }

// Verify reads every byte of a closed log and reports all damage. It changes no file. Of the options it uses FS, Dir and
// Known. It calls fn, unless fn is nil, with each record that can be read, also behind damage. The payload is valid until fn
// returns. The error is one of fn, or of reading the files.
func Verify(o Options, fn func(position int64, payload []byte) error) (r Report, err error) {
	o.FS = cmp.Or(o.FS, OS)
	list, damage, err := load(o, os.O_RDONLY)
	defer closeAll(list)
	if err != nil {
		return r, err
	}
	r.Damage, r.From, r.End = damage, firstPosition, max(o.Known, firstPosition)
	count := func(position int64, payload []byte) error {
		r.Records++
		if fn == nil {
			return nil
		}
		return fn(position, payload)
	}
	for i, g := range list {
		var x extent
		if i+1 < len(list) {
			x, err = g.verify(list[i+1], count)
		} else {
			x, r.Torn, err = g.tail(o, count)
			r.From, r.End = g.status.oldest, max(r.End, g.status.synced)
		}
		if n := len(r.Runs) - 1; i > 0 && g.prevBase == list[i-1].base && r.Runs[n].To == g.base {
			r.Runs[n].To = x.end
		} else {
			r.Runs = append(r.Runs, Run{g.first, x.end})
		}
		if d := (*DamageError)(nil); errors.As(err, &d) {
			r.Damage = append(r.Damage, d)
			err = g.behind(x.end, count, &r.Runs)
		}
		if err != nil {
			return r, err
		}
		r.Segments++
		r.Bytes += x.end - g.first
	}
	if n := len(r.Runs); n > 0 {
		r.End = max(r.End, r.Runs[n-1].To)
	}
	return r, nil
}

// verify verifies a segment by its blocks and by the header of the next one, up to the first invalid block.
func (g *segment) verify(next *segment, fn func(int64, []byte) error) (x extent, err error) {
	x, err = g.walk(g.first, g.end, fn)
	switch {
	case err != nil:
	case x.end < g.end:
		err = g.damage(x.end, "a block is invalid")
	case g.first == g.base && next.prevBase == g.base && next.base == x.end && x.crc != next.prevCRC:
		err = g.damage(g.base, "its checksum differs from the checksum in the header of %s", next.name())
		x.end, g.end = g.base, g.base // its records are valid, and others than it had
	}
	return x, err
}

// behind adds the runs of a segment behind damage at a position to runs.
func (g *segment) behind(damage int64, fn func(int64, []byte) error, runs *[]Run) (err error) {
	read := damage // all blocks before it
	for position := range g.headers(damage+1, g.end, &err) {
		if position < read {
			continue
		}
		x, err := g.walk(position, g.end, fn)
		if err != nil {
			return err
		}
		if x.end > position {
			*runs = append(*runs, Run{position, x.end})
		}
		read = x.end
	}
	return err
}
