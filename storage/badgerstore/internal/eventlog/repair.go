package eventlog

import (
	"cmp"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"slices"
)

// AsideSuffix is added to the names of files that [RepairPlan.Apply] sets aside. If the name is taken, "-2" or a higher
// number follows.
const AsideSuffix = ".damaged"

// Part is an unbroken part of a log: every block in it is valid.
type Part struct {
	From, To    int64 // positions
	Records     int
	Events      int    // number of records that are events, see [PlanRepair]
	First, Last []byte // payloads of the first and the last event

	first, last *segment
	crc         uint32 // of the first segment from From on
	hours       hours  // of the first segment from From on
}

// RepairPlan is a plan to repair a damaged log. The last part that begins at the needed position or before it stays.
// All other parts are set aside. Without such a part an empty log begins at the needed position.
type RepairPlan struct {
	Parts      []Part // oldest first; the bytes between two parts cannot be read
	Kept       Part
	Empty      bool  // no record is kept
	WrittenEnd int64 // the position after the last byte that was written

	o        Options
	needed   int64                     // the owner needs the log from this position on
	isEvent  func(payload []byte) bool // reports whether a record is an event
	list     []*segment
	headless []int64 // the bases of files without a valid header

	aside []string // the names of the files that were set aside
}

// PlanRepair reads a closed log and returns the plan of [RepairPlan.Apply]. It changes nothing. Of the
// options it uses FS and Dir. The owner needs the log from the position needed on. isEvent reports whether a
// record is an event. The caller calls Apply or Close.
func PlanRepair(o Options, needed int64, isEvent func(payload []byte) bool) (*RepairPlan, error) {
	if o.FS == nil {
		o.FS = OS
	}
	r := &RepairPlan{o: o, needed: max(needed, firstPosition), isEvent: isEvent, Empty: true}
	if err := r.open(); err != nil {
		r.Close()
		return nil, err
	}
	var err error
	if r.Parts, err = r.parts(); err == nil {
		r.WrittenEnd, err = r.writtenEnd()
	}
	if err != nil {
		r.Close()
		return nil, err
	}
	for _, p := range r.Parts {
		if p.From <= r.needed {
			r.Kept, r.Empty = p, false
		}
	}
	return r, nil
}

// Close closes the files.
func (r *RepairPlan) Close() {
	for _, g := range r.list {
		_ = g.file.Close()
	}
}

// open opens all segments whose header can be read.
func (r *RepairPlan) open() error {
	names, err := r.o.FS.List(r.o.Dir)
	if err != nil {
		return err
	}
	for _, name := range names {
		base, ok := baseOf(name)
		if !ok {
			continue
		}
		g, err := openSegment(r.o.FS, r.o.Dir, base, os.O_RDWR)
		switch {
		case err == nil:
			r.list = append(r.list, g)
		case errors.Is(err, ErrDamaged):
			r.headless = append(r.headless, base)
		default:
			return err
		}
	}
	slices.SortFunc(r.list, func(a, b *segment) int { return cmp.Compare(a.base, b.base) })
	return nil
}

// parts returns the unbroken parts of the log, oldest first.
func (r *RepairPlan) parts() (parts []Part, err error) {
	for i, g := range r.list {
		if i+1 < len(r.list) {
			g.end = min(g.end, r.list[i+1].base)
		}
		for from := g.base; ; {
			p, err := g.part(from, r.isEvent)
			if err != nil {
				return nil, err
			}
			if n := len(parts); n > 0 && from == g.base && r.follows(&parts[n-1], g) {
				parts[n-1].join(&p)
			} else if p.To > p.From || len(r.list) == 1 || g.gap {
				parts = append(parts, p)
			}
			if from, err = g.nextBlock(p.To + 1); err != nil {
				return nil, err
			}
			if from >= g.end {
				break
			}
		}
	}
	return parts, nil
}

// writtenEnd returns the position after the last byte of the last segment that is not zero.
func (r *RepairPlan) writtenEnd() (int64, error) {
	if len(r.Parts) == 0 {
		return 0, nil
	}
	return r.list[len(r.list)-1].lastWritten(r.Parts[len(r.Parts)-1].To)
}

// follows reports whether a segment continues a part.
func (r *RepairPlan) follows(p *Part, g *segment) bool {
	end := g.base
	if g.gap {
		end = p.last.cut()
	}
	if p.To != end {
		return false
	}
	sameLog := g.seed == p.last.seed
	if p.first == p.last && g.prevBase == p.From { // the segment is whole, or an interrupted cutHead left it
		return sameLog && g.prevCRC == p.crc
	}
	return sameLog && g.prevBase == p.last.base
}

// part returns the unbroken part of a segment from a position on.
func (g *segment) part(from int64, isEvent func([]byte) bool) (p Part, err error) {
	p = Part{From: from, To: from, first: g, last: g}
	for u, err := range g.unitsFrom(from, g.end) {
		if err != nil {
			return p, err
		}
		for _, payload := range u.records() {
			p.Records++
			if !isEvent(payload) {
				continue
			}
			if p.Last = append(p.Last[:0], payload...); p.Events == 0 {
				p.First = slices.Clone(payload)
			}
			p.Events++
		}
		p.To, p.hours, p.crc = u.end(), p.hours.and(u.hours), crc32.Update(p.crc, castagnoli, u.bytes)
	}
	return p, nil
}

// join adds a part that follows.
func (p *Part) join(next *Part) {
	if p.Events == 0 {
		p.First = next.First
	}
	if next.Events > 0 {
		p.Last = next.Last
	}
	p.To, p.last = next.To, next.last
	p.Records, p.Events = p.Records+next.Records, p.Events+next.Events
}

// nextBlock returns the position of the next valid block, the end of the segment when there is none.
func (g *segment) nextBlock(from int64) (int64, error) {
	const overlap = blockHeader - 1
	b := make([]byte, max(blockHeader, min(g.end-from, 1<<20)))
	for g.end-from >= blockHeader {
		n, err := g.file.ReadAt(b[:min(g.end-from, int64(len(b)))], g.offset(from))
		if nonEOF(err) != nil || n < blockHeader {
			return g.end, nonEOF(err)
		}
		for i := range int64(n - overlap) {
			// The length rules out nearly all other bytes.
			if length := int64(le.Uint32(b[i+4:])); length <= recordHeader || length > g.end-from-i {
				continue
			}
			if info, ok := decodeBlock(b[i:], g.seed, from+i); ok && info.end <= g.end {
				for u, err := range g.unitsFrom(from+i, info.end) {
					if err != nil {
						return 0, err
					}
					return u.start, nil
				}
			}
		}
		from += int64(n - overlap)
	}
	return g.end, nil
}

// Apply moves all records that are not kept to new files, and returns their names: see [AsideSuffix]. next is the first
// position of new records: see [RepairPlan.Next]. After an interrupted Apply, the repair can be planned and applied again.
func (r *RepairPlan) Apply(next int64) (names []string, err error) {
	defer r.Close()
	var gap *segment
	if next > r.End() { // first, so that an interrupted repair leaves a log that counts as damaged
		if gap, err = r.createGap(next); err != nil {
			return nil, err
		}
		defer func() { _ = gap.file.Close() }()
	}
	for _, base := range r.headless { // before cutHead, which may create a segment with one of these names
		if err := r.setAside(segmentName(base), base); err != nil {
			return r.aside, err
		}
	}
	for _, g := range slices.Backward(r.list) {
		if err := r.apply(g); err != nil {
			return r.aside, fmt.Errorf("%s: %w", g.name(), err)
		}
	}
	last := r.Kept.last
	if r.Empty {
		last, err = r.create(header{base: r.needed, seed: r.seed()}, nil, status{oldest: r.needed})
	}
	s := status{synced: r.End(), oldest: r.first()}
	if gap != nil && err == nil {
		err = gap.finish(status{synced: gap.base, oldest: s.oldest})
		s.sealed = true
	}
	if err == nil {
		err = last.finish(s)
	}
	slices.Sort(r.aside)
	return r.aside, errors.Join(err, r.o.FS.SyncDir(r.o.Dir))
}

// seed returns the seed of the log, any other one when no header can be read.
func (r *RepairPlan) seed() uint32 {
	if len(r.list) > 0 {
		return r.list[0].seed
	}
	return uint32(r.needed)
}

// apply sets aside the records of a segment that are not kept.
func (r *RepairPlan) apply(g *segment) error {
	k := &r.Kept
	switch {
	case r.Empty || g.base < k.first.base || g.base > k.last.base:
		return r.setAside(g.name(), g.base)
	case g == k.first && k.From > g.base:
		return r.cutHead(g)
	case g == k.last && k.To < g.end:
		return r.cutTail(g)
	}
	return nil
}

// setAside renames a file with the bytes of a segment to the first free name.
func (r *RepairPlan) setAside(file string, base int64) error {
	names, err := r.o.FS.List(r.o.Dir)
	if err != nil {
		return err
	}
	name := segmentName(base) + AsideSuffix
	for n := 2; slices.Contains(names, name); n++ {
		name = fmt.Sprintf("%s%s-%d", segmentName(base), AsideSuffix, n)
	}
	if err = r.o.FS.Rename(filepath.Join(r.o.Dir, file), filepath.Join(r.o.Dir, name)); err == nil {
		r.aside = append(r.aside, name)
	}
	return err
}

// cutTail copies the segment and then cuts off the bytes after the kept part. It makes no copy when
// these bytes are zeros.
func (r *RepairPlan) cutTail(g *segment) error {
	written, err := g.lastWritten(r.Kept.To)
	if err == nil && written > r.Kept.To {
		err = r.copy(g)
	}
	if err != nil {
		return err
	}
	return errors.Join(g.file.Truncate(g.offset(r.Kept.To)), g.file.Sync())
}

// cutHead begins the log with a new segment at the kept part, and sets the old one aside. It first changes the header of
// the next segment: until the new segment exists, the log is damaged, and [RepairPlan.follows] accepts that header.
func (r *RepairPlan) cutHead(g *segment) error {
	k := &r.Kept
	end := g.end
	if g == k.last {
		end = k.To
	}
	data := make([]byte, end-k.From)
	if _, err := io.ReadFull(io.NewSectionReader(g.file, g.offset(k.From), end-k.From), data); err != nil {
		return err
	}
	if g != k.last {
		next := r.list[slices.Index(r.list, g)+1]
		next.prevBase, next.prevCRC, next.prevHours = k.From, crc32.Checksum(data, castagnoli), k.hours
		if _, err := next.file.WriteAt(next.encode(), 0); err != nil {
			return err
		}
		if err := next.file.Sync(); err != nil {
			return err
		}
	}
	n, err := r.create(header{base: k.From, seed: g.seed}, data, status{oldest: r.list[0].base, sealed: g != k.last})
	if err != nil {
		return err
	}
	if g == k.last {
		k.last = n
	}
	k.first = n
	return r.setAside(g.name(), g.base)
}

// create writes a segment under a temporary name, and renames it when it is whole.
func (r *RepairPlan) create(h header, data []byte, s status) (*segment, error) {
	g := &segment{header: h, path: filepath.Join(r.o.Dir, segmentName(h.base)), end: h.base + int64(len(data))}
	draft := filepath.Join(r.o.Dir, spareName)
	f, err := r.o.FS.Open(draft, os.O_RDWR|os.O_CREATE)
	if err != nil {
		return nil, err
	}
	g.file = f
	_, err = f.WriteAt(g.encode(), 0)
	if err == nil {
		s.synced = g.end
		err = errors.Join(g.writeStatus(s), f.Truncate(dataOffset))
	}
	if err == nil && len(data) > 0 {
		_, err = f.WriteAt(data, dataOffset)
	}
	if err = errors.Join(err, f.Sync()); err != nil {
		return g, err
	}
	return g, errors.Join(r.o.FS.Rename(draft, g.path), r.o.FS.SyncDir(r.o.Dir))
}

// copy copies the file of a segment to a draft, and sets the draft aside when it is whole.
func (r *RepairPlan) copy(g *segment) error {
	draft := filepath.Join(r.o.Dir, spareName)
	f, err := r.o.FS.Open(draft, os.O_RDWR|os.O_CREATE)
	if err != nil {
		return err
	}
	size, err := g.file.Size()
	b := make([]byte, 1<<20)
	for at := int64(0); at < size && err == nil; at += int64(len(b)) {
		b = b[:min(int64(len(b)), size-at)]
		if _, err = g.file.ReadAt(b, at); err == nil {
			_, err = f.WriteAt(b, at)
		}
	}
	if err = errors.Join(err, f.Truncate(size), f.Sync(), f.Close()); err != nil {
		return errors.Join(err, r.o.FS.Remove(draft)) // the disk may be full
	}
	return errors.Join(r.setAside(spareName, g.base), r.o.FS.SyncDir(r.o.Dir))
}
