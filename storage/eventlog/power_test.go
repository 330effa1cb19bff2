package eventlog

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// outage uses a log until the process is killed or the power is cut, at any change of the file
// system, and compares the files that are left with the answers.
type outage struct {
	random *rand.Rand
	fs     *memFS
	left   *memFS // the file system after the kill or power cut, nil before it
	l      *Log

	w    written
	safe int64 // records before this position must not be lost
	gone int64 // records before this position may have been removed
}

// use opens the log and runs random operations until the kill or power cut.
func (o *outage) use() error {
	ends, cut := o.fs.count+1+o.random.IntN(120), o.random.IntN(3) > 0
	o.left = nil
	o.fs.at = func(count int) {
		if count == ends && cut {
			o.left = o.fs.powerCut(o.random)
		} else if count == ends {
			o.left = o.fs.clone()
		}
	}
	l, err := Open(Options{FS: o.fs, Dir: "log", SegmentSize: 600 + o.random.Int64N(3000), Ahead: o.random.Int64N(3000) + 1,
		Power: o.random.IntN(2) == 0})
	if err != nil {
		return fmt.Errorf("open: %w", err)
	}
	o.l = l
	for o.left == nil {
		if err := o.step(); err != nil {
			return err
		}
	}
	l.Abandon()
	o.fs = o.left
	return nil
}

func (o *outage) step() error {
	switch o.random.IntN(14) {
	case 0:
		if err := o.l.Flush(); err != nil {
			return err
		}
		end := o.l.Written()
		if err := o.l.Sync(); err != nil {
			return err
		}
		o.answered(end)
	case 1:
		list := o.l.Segments()
		if g := list[o.random.IntN(max(1, len(list)/2)):]; len(g) > 1 && o.random.IntN(3) == 0 {
			o.gone = max(o.gone, g[0].Base)
			return o.l.Remove(g[0].Base)
		}
	case 2:
		o.l.SetPower(o.random.IntN(2) == 0)
	case 3, 4, 5:
		return o.append(false)
	default:
		return o.append(true)
	}
	return nil
}

// answered records that no record before a position may be lost from now on.
func (o *outage) answered(end int64) {
	if o.left == nil {
		o.safe = max(o.safe, end)
	}
}

func (o *outage) append(await bool) error {
	payload := fmt.Sprint(len(o.w), " ", strings.Repeat("p", o.random.IntN(1<<o.random.IntN(11))))
	position, t, err := int64(0), Ticket{}, error(nil)
	if await {
		position, t, err = o.l.AppendAwaited(text(payload), Keep{})
	} else {
		position, err = o.l.Append(text(payload), Keep{})
	}
	o.w[position] = payload
	if err == nil && await {
		if err = t.Wait(); err == nil && o.l.power.Load() {
			o.answered(position + 1)
		}
	}
	return err
}

// check opens the files that are left and returns the first broken promise.
func (o *outage) check() error {
	fs := o.fs.clone()
	for range 2 { // opens the log again after Open has cut it
		l, err := Open(Options{FS: fs, Dir: "log"})
		if err != nil {
			return fmt.Errorf("open: %w", err)
		}
		first := int64(firstPosition)
		if list := l.Segments(); len(list) > 0 {
			first = list[0].Base
		}
		got, err := replayed(l, first)
		l.Abandon()
		if err != nil {
			return err
		}
		if first > max(o.gone, firstPosition) {
			return fmt.Errorf("the first segment begins at %d, but only records before %d were removed", first, o.gone)
		}
		if err := o.compare(got, first); err != nil {
			return err
		}
		end := l.Written()
		maps.DeleteFunc(o.w, func(position int64, _ string) bool { return position >= end }) // these positions are used again
	}
	return nil
}

// compare checks that the records in the log are the first written records, without a gap.
func (o *outage) compare(got written, first int64) error {
	for position, payload := range got {
		if o.w[position] != payload {
			return fmt.Errorf("at %d: got %.20q, want %.20q", position, payload, o.w[position])
		}
	}
	var positions []int64
	for position := range o.w {
		if position >= first {
			positions = append(positions, position)
		}
	}
	slices.Sort(positions)
	for i, position := range positions {
		if _, ok := got[position]; ok != (i < len(got)) {
			return fmt.Errorf("the record at %d: got %v, want the first %d of %d", position, ok, len(got), len(positions))
		} else if !ok && position < o.safe {
			return fmt.Errorf("the record at %d is lost, but all records before %d were answered", position, o.safe)
		}
	}
	return nil
}

const outages = 3000

// TestPowerCut: the log opens after a power cut or kill at any moment, with any unsynced sectors and
// names lost. It has all records that were answered with durability power or synced, no gap, and no
// record that was not written.
func TestPowerCut(t *testing.T) {
	records := 0
	for seed := range uint64(outages / 4) {
		o := outage{random: rand.New(rand.NewPCG(seed, 0)), fs: newMemFS(), w: written{}}
		for round := range 4 {
			err := o.use()
			if err == nil {
				err = o.check()
			}
			if err != nil {
				t.Fatalf("seed %d, round %d: %v", seed, round, err)
			}
		}
		records += len(o.w)
	}
	t.Logf("%d outages, %d records left", outages, records)
}

// TestPowerCutIsNoticed: the test of power cuts finds a log whose syncs do nothing.
func TestPowerCutIsNoticed(t *testing.T) {
	for seed := range uint64(200) {
		o := outage{random: rand.New(rand.NewPCG(seed, 0)), fs: newMemFS(), w: written{}}
		o.fs.lazy = true
		if o.use() != nil || o.check() != nil {
			return
		}
	}
	t.Error("nothing was lost without syncs")
}
