package eventlog

import (
	"bytes"
	"cmp"
	"errors"
	"hash/crc32"
	"os"
)

// Report is the result of [Verify].
type Report struct {
	Segments, Records int
	Bytes             int64          // of all segments
	From              int64          // the first position after the last gap, or of the log without a gap; 0 without a segment
	First             []byte         // the payload of the first record
	Torn              Torn           // the torn write at the end, which Open cuts off; no Bytes for none
	Damage            []*DamageError // empty for an undamaged log
}

// Verify reads every byte of a closed log and reports all damage. It changes no file. Of the
// options it uses FS, Dir, Known and Boot. The error is an error of reading the files.
func Verify(o Options) (r Report, err error) {
	if o.FS == nil {
		o.FS = OS
	}
	report := func(err error) error {
		var d *DamageError
		if !errors.As(err, &d) {
			return err
		}
		r.Damage = append(r.Damage, d)
		return nil
	}
	list, err := load(o, os.O_RDONLY, report)
	defer func() {
		for _, g := range list {
			_ = g.file.Close()
		}
	}()
	for i, g := range list {
		if err != nil {
			break
		}
		if i == 0 || g.gap {
			r.From = g.base
		}
		if i == len(list)-1 {
			err = r.last(g, o, report)
		} else {
			err = r.sealed(g, list[i+1], report)
		}
		r.Segments++
		r.Bytes += g.end - g.base
	}
	return r, cmp.Or(err, end(list, o, report))
}

// Inspect returns the damage that [Open] would return, from the headers and the last segment. It changes no file. Of the
// options it uses FS, Dir, Known and Boot.
func Inspect(o Options) error {
	if o.FS == nil {
		o.FS = OS
	}
	list, err := load(o, os.O_RDONLY, func(err error) error { return err })
	defer func() {
		for _, g := range list {
			_ = g.file.Close()
		}
	}()
	t := tail{end: firstPosition}
	if n := len(list); n > 0 && err == nil {
		t, err = list[n-1].tail(o)
	}
	return cmp.Or(err, o.reached(t.end))
}

// end reports damage if the log ends before the position Known.
func end(list []*segment, o Options, report func(error) error) error {
	if len(list) > 0 || o.Known <= firstPosition {
		return nil
	}
	return report(&DamageError{segmentName(firstPosition), 0, "the log has no file, but was known to have files"})
}

// last verifies the last segment.
func (r *Report) last(g *segment, o Options, report func(error) error) error {
	t, err := g.tail(o)
	if err != nil {
		return report(err)
	}
	r.Torn, g.end = Torn{g.name(), g.offset(t.end), t.torn}, t.end
	return r.count(g, func([]byte) {})
}

// sealed verifies a segment by its blocks and by the header of the next one. After an invalid
// block it goes on with the next segment.
func (r *Report) sealed(g, next *segment, report func(error) error) error {
	crc, end := uint32(0), g.base
	err := r.count(g, func(b []byte) {
		crc, end = crc32.Update(crc, castagnoli, b), end+int64(len(b))
	})
	switch {
	case err != nil:
		return err
	case end < g.end:
		return report(g.damage(end, "a block is invalid"))
	case next.prevBase == g.base && (next.base == end || next.gap) && crc != next.prevCRC:
		return report(g.damage(g.base, "its checksum differs from the checksum in the header of %s", next.name()))
	}
	return nil
}

// count counts the records of a segment and calls fn with the bytes of each block.
func (r *Report) count(g *segment, fn func([]byte)) error {
	for u, err := range g.units(g.end) {
		if err != nil {
			return err
		}
		for _, payload := range u.records() {
			if r.Records++; r.Records == 1 {
				r.First = bytes.Clone(payload)
			}
		}
		fn(u.bytes)
	}
	return nil
}
