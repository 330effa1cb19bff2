package eventlog

import (
	"cmp"
	"errors"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"os"
	"slices"
)

// Open opens the log in a directory, or creates the log in an empty directory. It reads the last
// segment completely, cuts off a torn write, and syncs the rest. It returns a [DamageError] for a
// damaged log, and does not change the files of that log.
func Open(o Options) (*Log, error) {
	if o.FS == nil {
		o.FS = OS
	}
	o.SegmentSize, o.Ahead = cmp.Or(o.SegmentSize, DefaultSegmentSize), cmp.Or(o.Ahead, DefaultAhead)
	l := &Log{o: o, seed: rand.Uint32()}
	l.power.Store(o.Power)
	list, err := load(o, os.O_RDWR, func(err error) error { return err })
	l.segments.all = list
	if err == nil {
		err = l.recover()
	}
	if err != nil {
		l.Abandon()
		return nil, err
	}
	return l, nil
}

// load opens the segments of a log and checks that they follow each other. It passes all damage to
// report, and ends when report returns an error.
func load(o Options, flags int, report func(error) error) (list []*segment, err error) {
	names, err := o.FS.List(o.Dir)
	if err != nil {
		return nil, err
	}
	var bases []int64
	for _, name := range names {
		if base, ok := baseOf(name); ok {
			bases = append(bases, base)
		}
	}
	slices.Sort(bases)
	for _, base := range bases {
		g, err := openSegment(o.FS, o.Dir, base, flags)
		if err == nil {
			list = append(list, g)
			continue
		}
		if !errors.Is(err, ErrDamaged) {
			return list, err
		}
		if err := report(err); err != nil {
			return list, err
		}
	}
	list = dropRemoved(o, list, flags)
	for _, err := range chain(list) {
		if err := report(err); err != nil {
			return list, err
		}
	}
	return list, nil
}

// dropRemoved closes segments that were removed and whose files a crash has left, and removes
// the files.
func dropRemoved(o Options, list []*segment, flags int) []*segment {
	n := len(list)
	if n == 0 {
		return list
	}
	return slices.DeleteFunc(list, func(g *segment) bool {
		removed := g.base < list[n-1].status.oldest
		if removed {
			_ = g.file.Close()
			if flags != os.O_RDONLY {
				_ = o.FS.Remove(g.path) // after an error, the next Open tries again
			}
		}
		return removed
	})
}

// chain checks that each segment follows the previous segment. It sets the end and the retention of
// each segment except the last one, and returns all damage.
func chain(list []*segment) (errs []error) {
	missing := func(base int64, why string, g *segment) {
		errs = append(errs, &DamageError{segmentName(base), 0, "the file is missing: " + why + " " + g.name()})
	}
	for i, g := range list {
		if i == 0 {
			continue
		}
		prev := list[i-1]
		end := g.base // of prev
		if g.gap {
			end = cmp.Or(prev.cut(), prev.end)
		}
		switch {
		case g.prevBase > prev.base:
			missing(g.prevBase, "it is before", g)
		case g.prevBase < prev.base:
			errs = append(errs, &DamageError{prev.name(), 0, "the file does not belong to the log: it is not the file before " + g.name()})
		case g.gap && prev.cut() == 0:
			errs = append(errs, prev.damage(prev.base, "the repair that created %s was interrupted", g.name()))
		case end > prev.end && g.gap:
			errs = append(errs, prev.damage(prev.end, "the file is cut off: its status has the end at byte %d", prev.offset(end)))
		case end > prev.end:
			errs = append(errs, prev.damage(prev.end, "the file is cut off: it ends where %s begins, at byte %d", g.name(), prev.offset(end)))
		case g.seed != prev.seed:
			errs = append(errs, &DamageError{g.name(), 28, "the file belongs to another log than " + prev.name()})
		}
		prev.end, prev.hours = min(prev.end, end), g.prevHours
	}
	if n := len(list); n > 0 {
		last := list[n-1]
		if oldest := last.status.oldest; oldest < list[0].base {
			missing(oldest, "it is the oldest by", last)
		}
		if last.status.sealed {
			missing(last.status.synced, "it is after", last)
		}
	}
	return errs
}

// recover finds the end of the log and prepares it to be written from there.
func (l *Log) recover() error {
	end := int64(firstPosition)
	if n := len(l.segments.all); n > 0 {
		g := l.segments.all[n-1]
		if err := l.recoverLast(g); err != nil {
			return err
		}
		end = g.end
		l.current.Store(g)
	}
	if err := l.o.reached(end); err != nil {
		return err
	}
	l.open = newBlock(end, nil)
	l.written.Store(end)
	if fs, ok := l.o.FS.(osFS); ok {
		dir, err := fs.openDir(l.o.Dir)
		if err != nil {
			return err
		}
		l.dir = dir
	}
	if err := l.syncDir(); err != nil {
		return err
	}
	if err := l.Sync(); err != nil { // a killed process may have left unsynced blocks
		return err
	}
	_ = l.o.FS.Remove(l.sparePath()) // a crash may have left the file
	return l.openSpare(false)
}

// reached returns an error when a log ends before the position Known.
func (o *Options) reached(end int64) error {
	if end >= o.Known {
		return nil
	}
	return &DamageError{segmentName(end), 0, fmt.Sprintf("the log ends at position %d and was known to reach %d", end, o.Known)}
}

// recoverLast finds the end of the last segment, and cuts off a torn write.
func (l *Log) recoverLast(g *segment) error {
	l.seed = g.seed
	fileEnd := g.end
	t, err := g.tail(l.o)
	if err != nil {
		return err
	}
	g.end, g.crc, g.hours = t.end, t.crc, g.hours.and(t.hours)
	if g.room = fileEnd; t.torn == 0 {
		return nil
	}
	if l.o.OnTorn != nil {
		l.o.OnTorn(Torn{g.name(), g.offset(t.end), t.torn})
	}
	g.room = t.end
	return errors.Join(g.file.Truncate(g.offset(t.end)), g.file.Sync())
}

// tail is the end of the last segment.
type tail struct {
	end   int64
	torn  int64 // the bytes of a torn write after end
	crc   uint32
	hours hours
}

// tail reads the last segment and tells a torn write from damage; doc.go has the rule.
func (g *segment) tail(o Options) (t tail, err error) {
	t.end = g.base
	for u, err := range g.units(g.end) {
		if err != nil {
			return t, err
		}
		t.end, t.hours, t.crc = u.end(), t.hours.and(u.hours), crc32.Update(t.crc, castagnoli, u.bytes)
	}
	known, sameBoot := max(g.status.synced, o.Known), o.Boot != 0 && g.status.boot == o.Boot
	if t.end < known {
		return t, g.damage(t.end, "a block is invalid, and the log is known to be on disk up to byte %d", g.offset(known))
	}
	if sameBoot && t.end < g.status.written {
		return t, g.damage(t.end, "a block is invalid, and the log was written up to byte %d since the machine was started", g.offset(g.status.written))
	}
	written, err := g.lastWritten(t.end)
	if err != nil || written == t.end {
		return t, err
	}
	t.torn = written - t.end
	if sameBoot {
		return t, g.prefixOnly(t.end, written)
	}
	after, at, err := g.syncedAfter(t.end, g.end)
	if err == nil && after > t.end {
		err = g.damage(t.end, "a block is invalid, but was on disk: a block at or after byte %d says so", g.offset(at))
	}
	return t, err
}

// prefixOnly returns an error unless the bytes between two positions can be the beginning of a block
// that a killed process has left. Only zeros, or no bytes, follow them.
func (g *segment) prefixOnly(from, written int64) error {
	b := make([]byte, blockHeader)
	n, err := g.file.ReadAt(b, g.offset(from))
	if nonEOF(err) != nil {
		return err
	}
	if info, ok := decodeBlock(b, g.seed, from); n == blockHeader && ok {
		if written < info.end {
			return nil
		}
	} else if written < from+blockHeader {
		return nil
	}
	return g.damage(from, "a block is invalid, but was written completely since the machine was started")
}
