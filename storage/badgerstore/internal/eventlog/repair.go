package eventlog

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
)

// AsideSuffix is added to the names of files that a repair sets aside. If the name is taken, "-2" or a higher number
// follows.
const AsideSuffix = ".damaged"

// Loss is a part of a log that cannot be read.
type Loss struct {
	From, To      int64  // positions
	Before, After []byte // payloads of the last event before it and of the first event after it, nil without one
}

// RepairPlan is a plan to repair a damaged log.
type RepairPlan struct {
	Losses []Loss // oldest first
	End    int64  // the position after the last byte that is known to have been written
	Whole  int64  // see [Log.From]

	o       Options
	isEvent func(payload []byte) bool
	parts   []*repairPart // oldest first
	last    []byte        // the payload of the last event that was read
	aside   []string      // the names of the files that were set aside
}

// repairPart is a segment in a plan.
type repairPart struct {
	*segment
	headless bool   // the header or the status is to be written
	read     extent // of the valid blocks
}

// PlanRepair reads a closed log and returns what cannot be read. It changes nothing. Of the options it uses FS, Dir and
// Known. isEvent reports whether a record is an event. The caller calls Apply or Close.
func PlanRepair(o Options, isEvent func(payload []byte) bool) (r *RepairPlan, err error) {
	o.FS = cmp.Or(o.FS, OS)
	r = &RepairPlan{o: o, isEvent: isEvent, End: max(o.Known, firstPosition)}
	if err = r.open(); err == nil {
		err = r.scan()
	}
	if err != nil {
		r.Close()
	}
	return r, err
}

// Close closes the files.
func (r *RepairPlan) Close() {
	for _, p := range r.parts {
		_ = p.file.Close()
	}
}

// open opens all segments. One without a valid header, or of another log, gets the seed of most others.
func (r *RepairPlan) open() error {
	list, err := openSegments(r.o, os.O_RDWR)
	oldest, seed := int64(0), rand.Uint32()
	seeds := map[uint32]int{}
	for _, g := range list {
		if g.invalid != nil {
			continue
		}
		if seeds[g.seed]++; g.seed == seed || seeds[g.seed] > seeds[seed] {
			oldest, seed, r.Whole = g.status.oldest, g.seed, g.status.whole
		}
	}
	r.Whole = max(r.Whole, oldest)
	for _, g := range list {
		if g.base < oldest {
			_ = g.file.Close()
			continue
		}
		r.parts = append(r.parts, &repairPart{segment: g, headless: g.invalid != nil || g.seed != seed})
		g.seed = seed
	}
	if len(r.parts) > 0 && oldest < r.parts[0].base && oldest > 0 {
		r.lose(oldest, r.parts[0].base)
	}
	return err
}

// scan finds the losses of all segments.
func (r *RepairPlan) scan() error {
	for i, p := range r.parts {
		before := len(r.Losses)
		end, err := r.endOf(i)
		if p.end = min(p.end, end); err == nil {
			p.read, err = p.salvage(end, r.note, r.lose)
		}
		if err != nil {
			return err
		}
		for _, h := range p.read.holes {
			r.Whole = max(r.Whole, h.to)
		}
		if i+1 == len(r.parts) {
			r.End = max(r.End, end)
			break
		}
		next := r.parts[i+1]
		follows := !next.headless && next.prevBase == p.base
		if whole := len(r.Losses) == before && len(p.read.holes) == 0; whole && follows && p.read.crc != next.prevCRC {
			r.lose(p.base, end) // its records are valid, and others than it had
		}
		if !follows {
			next.headless = true
			next.prevBase, next.prevCRC, next.prevHours = p.base, p.read.crc, p.read.hours
		}
	}
	if len(r.parts) == 0 {
		r.lose(firstPosition, r.End)
	}
	return nil
}

// endOf returns the position at which a segment must end: the base of the next segment. The last segment must have every byte that
// is known to be on disk. A torn write at its end is no loss.
func (r *RepairPlan) endOf(i int) (end int64, err error) {
	if i+1 < len(r.parts) {
		return r.parts[i+1].base, nil
	}
	p := r.parts[i]
	x, _, err := p.tail(r.o, nil)
	if !errors.Is(err, ErrDamaged) && !p.status.sealed { // sealed: a later segment is missing
		return x.end, err
	}
	written, err := p.lastWritten(p.base)
	return max(written, r.o.Known, p.status.synced, x.end+blockHeader), err // room for the header of a hole
}

// salvage reads the valid blocks of a segment that ends at a position. It calls fn with each record, and lost with each range
// between the blocks. The checksum of the extent covers only the last run of blocks.
func (g *segment) salvage(end int64, fn func(int64, []byte) error, lost func(from, to int64)) (all extent, err error) {
	for at := g.base; ; {
		x, err := g.walk(at, g.end, fn)
		if err != nil {
			return all, err
		}
		all = extent{x.end, x.crc, all.hours.and(x.hours), append(all.holes, x.holes...)}
		if x.end >= end {
			return all, nil
		}
		if at, err = g.nextBlock(x.end, end); err != nil {
			return all, err
		}
		lost(x.end, at)
	}
}

// nextBlock returns the position of the first valid block after a position, or end.
func (g *segment) nextBlock(after, end int64) (next int64, err error) {
	for position, info := range g.headers(after+blockHeader, g.end, &err) {
		x, err := g.walk(position, min(info.end, g.end), nil)
		if err != nil || x.end > position {
			return position, err
		}
	}
	return end, err
}

func (r *RepairPlan) lose(from, to int64) {
	r.Losses = append(r.Losses, Loss{From: from, To: to, Before: r.last})
}

// note notes a readable record.
func (r *RepairPlan) note(_ int64, payload []byte) error {
	if !r.isEvent(payload) {
		return nil
	}
	r.last = slices.Clone(payload)
	for i := len(r.Losses) - 1; i >= 0 && r.Losses[i].After == nil; i-- {
		r.Losses[i].After = r.last
	}
	return nil
}

// Records calls fn with each readable record. The payload is valid until fn returns.
func (r *RepairPlan) Records(fn func(position int64, payload []byte) error) error {
	for _, p := range r.parts {
		if _, err := p.salvage(p.end, fn, func(_, _ int64) {}); err != nil {
			return err
		}
	}
	return nil
}

// Apply keeps the log up to the position keep, and makes holes of the losses before it. Another hole goes from keep to end.
// The next record gets the position end, or a later one. Apply keeps the bytes of all segments that it changes in other files,
// and returns their names: see [AsideSuffix]. After an interrupted Apply, the repair can be planned and applied again: Apply first
// writes where the holes end, and then the holes.
func (r *RepairPlan) Apply(keep, end int64) (names []string, err error) {
	defer r.Close()
	if len(r.parts) == 0 {
		return nil, r.create(end)
	}
	n, oldest, whole := len(r.parts), r.parts[0].base, r.Whole
	for ; n > 0 && r.parts[n-1].base >= keep && (n > 1 || end < oldest); n-- {
		if err := r.setAside(r.parts[n-1].name(), r.parts[n-1].base); err != nil {
			return r.aside, err
		}
	}
	if n == 0 {
		return r.aside, r.create(end)
	}
	var holes []span
	for _, l := range r.Losses {
		if l.From < keep {
			holes = append(holes, span{l.From, l.To})
		}
	}
	if from := max(keep, oldest); from < end {
		holes = append(holes, span{from, end})
	}
	for _, h := range holes {
		whole = max(whole, h.to)
	}
	for i, p := range slices.Backward(r.parts[:n]) {
		s := status{synced: end, oldest: oldest, whole: whole}
		if i+1 < n {
			s.synced, s.sealed = r.parts[i+1].base, true
		}
		if err := r.mend(p, s, holes); err != nil {
			return r.aside, fmt.Errorf("%s: %w", p.name(), err)
		}
	}
	slices.Sort(r.aside)
	return r.aside, r.o.FS.SyncDir(r.o.Dir)
}

// mend makes a segment end where its status says, and writes its holes.
func (r *RepairPlan) mend(p *repairPart, s status, holes []span) error {
	holes = slices.DeleteFunc(slices.Clone(holes), func(h span) bool { return h.from < p.base || h.from >= s.synced })
	if s.sealed && len(holes) == 0 && !p.headless {
		return nil
	}
	written, err := p.lastWritten(p.base)
	if err == nil && (len(holes) > 0 || written > s.synced) {
		err = r.copyAside(p.segment)
	}
	if err == nil && p.headless {
		_, err = p.file.WriteAt(p.encode(), 0)
	}
	if err == nil {
		err = errors.Join(p.writeStatus(s), p.file.Sync())
	}
	for _, h := range holes {
		if err == nil {
			err = p.writeHole(h, s.synced)
		}
	}
	if err != nil {
		return err
	}
	return errors.Join(p.file.Truncate(p.offset(s.synced)), p.file.Sync())
}

// writeHole writes a hole of zeros. The segment ends at a position.
func (g *segment) writeHole(h span, end int64) (err error) {
	if h.to == end {
		err = errors.Join(g.file.Truncate(g.offset(h.from)), g.file.Truncate(g.offset(end)))
	}
	for at := h.from; h.to < end && at < h.to && err == nil; at += int64(len(zeros)) {
		_, err = g.file.WriteAt(zeros[:min(h.to-at, int64(len(zeros)))], g.offset(at))
	}
	for from := h.from; from < h.to && err == nil; {
		to := from + maxHole
		if to > h.to-blockHeader {
			to = h.to
		}
		_, err = g.file.WriteAt(holeHeader(g.seed, from, to), g.offset(from))
		from = to
	}
	return err
}

// create makes a log that begins at a position.
func (r *RepairPlan) create(base int64) error {
	g, err := createSegment(r.o, header{base: base, seed: rand.Uint32()}, status{synced: base, oldest: base})
	if err != nil {
		return err
	}
	return g.file.Close()
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

// copyAside copies the file of a segment to a draft, and sets the draft aside when it is whole.
func (r *RepairPlan) copyAside(g *segment) error {
	draft := filepath.Join(r.o.Dir, draftName)
	f, err := r.o.FS.Open(draft, os.O_RDWR|os.O_CREATE)
	if err != nil {
		return err
	}
	size, err := g.file.Size()
	if err == nil {
		_, err = io.Copy(io.NewOffsetWriter(f, 0), io.NewSectionReader(g.file, 0, size))
	}
	if err = errors.Join(err, f.Truncate(size), f.Sync(), f.Close()); err != nil {
		return errors.Join(err, r.o.FS.Remove(draft)) // the disk may be full
	}
	return errors.Join(r.setAside(draftName, g.base), r.o.FS.SyncDir(r.o.Dir))
}
