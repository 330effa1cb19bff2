package eventlog

import (
	"bytes"
	"cmp"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
)

// Open opens the log in a directory, or creates the log in an empty directory. It reads the last
// segment completely, cuts off a torn write, and syncs the rest. It returns a [DamageError] for a
// damaged log, and does not change the files of that log.
func Open(o Options) (*Log, error) {
	o.FS = cmp.Or(o.FS, OS)
	o.SegmentSize, o.Ahead = cmp.Or(o.SegmentSize, DefaultSegmentSize), cmp.Or(o.Ahead, DefaultAhead)
	l := &Log{o: o, seed: rand.Uint32()}
	l.power.Store(o.Power)
	list, damage, err := load(o, os.O_RDWR)
	l.segments.all = list
	if err == nil && len(damage) > 0 {
		err = damage[0]
	}
	if err == nil {
		err = l.recover()
	}
	if err != nil {
		l.Abandon()
		return nil, err
	}
	return l, nil
}

// load opens the segments of a log that have a valid header and were not removed, oldest first. It returns all damage of
// the headers, and checks that the segments follow each other. With os.O_RDWR it removes the files of removed segments,
// which a crash has left.
func load(o Options, flags int) (list []*segment, damage []*DamageError, err error) {
	all, err := openSegments(o, flags)
	if err != nil {
		return all, nil, err
	}
	seed := seedOf(all)
	for _, g := range all {
		if g.invalid == nil && g.seed != seed {
			g.invalid = &DamageError{g.name(), 28, "the file belongs to another log than most others"}
		}
		if g.invalid == nil {
			list = append(list, g)
			continue
		}
		damage = append(damage, g.invalid)
		_ = g.file.Close()
	}
	var removed []*segment
	if n := len(list); n > 0 {
		oldest, kept := list[n-1].status.oldest, 0
		for kept+1 < n && list[kept+1].base <= oldest {
			kept++
		}
		removed, list = list[:kept], list[kept:]
		list[0].first = max(list[0].base, oldest)
		damage = append(damage, chain(list)...)
		if kept > 0 && flags == os.O_RDWR && len(damage) == 0 { // a kill may have left a status that is not on disk
			err = synced(list[len(list)-1].file.Sync())
		}
	} else if o.Known > firstPosition {
		damage = append(damage, &DamageError{segmentName(firstPosition), 0, "the log has no file, but was known to have files"})
	}
	for _, g := range removed {
		_ = g.file.Close()
		if flags == os.O_RDWR && len(damage) == 0 && err == nil {
			_ = o.FS.Remove(g.path) // after an error, the next Open tries again
		}
	}
	return list, damage, err
}

// seedOf returns the seed of most segments.
func seedOf(list []*segment) (seed uint32) {
	count := map[uint32]int{}
	for _, g := range list {
		if g.invalid != nil {
			continue
		}
		if count[g.seed]++; count[g.seed] > count[seed] {
			seed = g.seed
		}
	}
	return seed
}

// openSegments opens the files of all segments, oldest first.
func openSegments(o Options, flags int) (list []*segment, err error) {
	names, err := o.FS.List(o.Dir)
	if err != nil {
		return nil, err
	}
	slices.Sort(names)
	for _, name := range names {
		base, ok := baseOf(name)
		if !ok {
			continue
		}
		g, err := openSegment(o.FS, o.Dir, base, flags)
		if err != nil {
			return list, err
		}
		list = append(list, g)
	}
	return list, nil
}

// chain checks that each segment follows the previous segment. It sets the end and the retention of
// each segment except the last one, and returns all damage.
func chain(list []*segment) (damage []*DamageError) {
	missing := func(base int64, why string, g *segment) {
		damage = append(damage, &DamageError{segmentName(base), 0, "the file is missing: " + why + " " + g.name()})
	}
	for i := 1; i < len(list); i++ {
		prev, g := list[i-1], list[i]
		switch {
		case g.prevBase > prev.base:
			missing(g.prevBase, "it is before", g)
		case g.prevBase < prev.base:
			damage = append(damage, &DamageError{prev.name(), 0, "the file does not belong to the log: it is not the file before " + g.name()})
		case g.base > prev.end:
			damage = append(damage, prev.damage(prev.end, "the file is cut off: it ends where %s begins, at byte %d", g.name(), prev.offset(g.base)))
		}
		prev.end, prev.hours = min(prev.end, g.base), g.prevHours
	}
	last := list[len(list)-1]
	if oldest := last.status.oldest; oldest < list[0].base {
		missing(oldest, "it is the oldest by", last)
	}
	if last.status.sealed {
		missing(last.status.synced, "it is after", last)
	}
	return damage
}

// recover finds the end of the log, cuts off a torn write, and prepares the log to be written from there.
func (l *Log) recover() error {
	end := int64(firstPosition)
	if n := len(l.segments.all); n > 0 {
		g := l.segments.all[n-1]
		x, torn, err := g.tail(l.o, nil)
		if err != nil {
			return err
		}
		l.seed, end = g.seed, x.end
		g.room, g.end, g.crc, g.hours = g.end, end, x.crc, g.hours.and(x.hours)
		if torn.Bytes > 0 {
			if l.o.OnTorn != nil {
				l.o.OnTorn(torn)
			}
			g.room = end
			if err := errors.Join(g.file.Truncate(torn.Offset), g.file.Sync()); err != nil {
				return err
			}
		}
		l.current.Store(g)
	}
	l.open = newBlock(end, nil)
	l.written.Store(end)
	_ = l.o.FS.Remove(filepath.Join(l.o.Dir, draftName)) // a crash may have left the file
	if err := l.o.FS.SyncDir(l.o.Dir); err != nil {
		return err
	}
	return l.Sync() // a killed process may have left unsynced blocks
}

// tail reads the last segment and tells a torn write from damage; doc.go has the rule. It calls fn with each record.
func (g *segment) tail(o Options, fn func(int64, []byte) error) (x extent, torn Torn, err error) {
	if x, err = g.walk(g.first, g.end, fn); err != nil {
		return x, Torn{}, err
	}
	if known := max(g.status.synced, o.Known); x.end < known {
		return x, Torn{}, g.damage(x.end, "a block is invalid, and the log is known to be on disk up to byte %d", g.offset(known))
	}
	rest := make([]byte, g.end-x.end)
	if _, err := g.file.ReadAt(rest, g.offset(x.end)); nonEOF(err) != nil {
		return x, Torn{}, err
	}
	if rest = bytes.TrimRight(rest, "\x00"); len(rest) == 0 { // preallocated space
		return x, Torn{}, nil
	}
	for position, info := range g.headers(x.end, g.end, &err) {
		if info.synced > x.end {
			return x, Torn{}, g.damage(x.end, "a block is invalid, but was on disk: the block at byte %d says so", g.offset(position))
		}
	}
	return x, Torn{g.name(), g.offset(x.end), int64(len(rest))}, err
}
