package eventlog

import (
	"cmp"
	"errors"
	"os"
)

// Report is the result of [Verify] and [Inspect].
type Report struct {
	Segments, Records int
	Bytes             int64 // of all segments
	From              int64 // see [Log.From]
	Torn              Torn
	Damage            []*DamageError // empty for an undamaged log
}

// Verify reads every byte of a closed log and reports all damage. It changes no file. Of the
// options it uses FS, Dir and Known. The error is an error of reading the files.
func Verify(o Options) (Report, error) { return verify(o, true) }

// Inspect returns the damage that [Open] would return, from the headers and the last segment, and a report with From and Torn.
// It changes no file. Of the options it uses FS, Dir and Known.
func Inspect(o Options) (Report, error) {
	r, err := verify(o, false)
	if err == nil && len(r.Damage) > 0 {
		err = r.Damage[0]
	}
	return r, err
}

// verify reads the headers, the last segment and, with all, the other segments.
func verify(o Options, all bool) (r Report, err error) {
	o.FS = cmp.Or(o.FS, OS)
	list, damage, err := load(o, os.O_RDONLY)
	defer func() {
		for _, g := range list {
			_ = g.file.Close()
		}
	}()
	if err != nil {
		return r, err
	}
	r.Damage = damage
	count := func(int64, []byte) error {
		r.Records++
		return nil
	}
	for i, g := range list {
		var torn Torn
		x := extent{end: g.end}
		switch {
		case i == len(list)-1:
			r.From = max(list[0].base, g.status.whole)
			x, torn, err = g.tail(o, count)
		case all:
			x, err = g.verify(list[i+1], count)
		}
		var d *DamageError
		switch {
		case errors.As(err, &d):
			r.Damage = append(r.Damage, d)
		case err != nil:
			return r, err
		default:
			r.Torn, g.end = torn, x.end
		}
		r.Segments++
		r.Bytes += g.end - g.base
	}
	return r, nil
}

// verify verifies a segment by its blocks and by the header of the next one, up to the first invalid block.
func (g *segment) verify(next *segment, fn func(int64, []byte) error) (x extent, err error) {
	x, err = g.walk(g.base, g.end, fn)
	switch {
	case err != nil:
	case x.end < g.end:
		err = g.damage(x.end, "a block is invalid")
	case next.prevBase == g.base && next.base == x.end && len(x.holes) == 0 && x.crc != next.prevCRC:
		err = g.damage(g.base, "its checksum differs from the checksum in the header of %s", next.name())
	}
	return x, err
}
