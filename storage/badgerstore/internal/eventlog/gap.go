package eventlog

import (
	"errors"
	"fmt"
)

// cut returns the end of the segment before a gap, where a repair has cut the segment off. It returns 0 when the repair
// was interrupted.
func (g *segment) cut() int64 {
	if g.status.sealed {
		return g.status.synced
	}
	return 0
}

// finish writes the status of a segment and syncs it.
func (g *segment) finish(s status) error { return errors.Join(g.writeStatus(s), g.file.Sync()) }

// first returns the position at which the kept part begins.
func (r *RepairPlan) first() int64 {
	if r.Empty {
		return r.needed
	}
	return r.Kept.From
}

// End returns the position at which the kept part ends.
func (r *RepairPlan) End() int64 { return max(r.first(), r.Kept.To) }

// Next returns the first position of new records after the repair, at least used. If no position after the kept
// part was ever used, this is the end of the kept part. Otherwise a gap follows the kept part.
func (r *RepairPlan) Next(used int64) int64 {
	for _, base := range r.headless {
		used = max(used, base+1)
	}
	for _, p := range r.Parts {
		used = max(used, p.To)
	}
	if used <= r.End() {
		return r.End()
	}
	for _, g := range r.list { // an empty segment has the base in its name, too
		used = max(used, g.base+1)
	}
	return used
}

// Records calls fn with the position and the payload of each record of the kept part. The payload is valid
// until fn returns.
func (r *RepairPlan) Records(fn func(position int64, payload []byte) error) error {
	for _, g := range r.list {
		if r.Empty || g.base < r.Kept.first.base || g.base > r.Kept.last.base {
			continue
		}
		for u, err := range g.unitsFrom(max(g.base, r.Kept.From), min(g.end, r.Kept.To)) {
			if err != nil {
				return err
			}
			for position, payload := range u.records() {
				if err := fn(position, payload); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// Read returns the record at a position. It returns [ErrGone] when the position is not in the kept part.
func (r *RepairPlan) Read(position int64) ([]byte, error) {
	for _, g := range r.list {
		if position >= max(g.base, r.first()) && position < min(g.end, r.End()) {
			return g.read(position, nil)
		}
	}
	return nil, ErrGone
}

// createGap creates an empty segment at base. A gap is between the kept part and base.
func (r *RepairPlan) createGap(base int64) (*segment, error) {
	h, oldest := header{base: base, seed: r.seed(), prevBase: r.first(), gap: true}, r.first()
	if last := r.Kept.last; last != nil {
		h.prevBase = max(last.base, oldest)
		p, err := last.part(h.prevBase, r.isEvent)
		if err != nil {
			return nil, err
		}
		h.prevCRC, h.prevHours = p.crc, p.hours
	}
	if len(r.list) > 0 {
		oldest = min(oldest, r.list[0].base) // until Apply sets that segment aside: Open removes segments before oldest
	}
	g, err := r.create(h, nil, status{oldest: oldest})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", segmentName(base), err)
	}
	return g, nil
}
