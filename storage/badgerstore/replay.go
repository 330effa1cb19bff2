package badgerstore

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/dgraph-io/badger/v4"

	"github.com/limitkeeper/limitkeeper/core"
)

// oftenUnfolded is how many events of a counter are read while the store is opened
// before the counter is taken into memory: finding them one by one, later, costs more.
const oftenUnfolded = 64

// replay reads the ledger from where it was folded up to, and notes which counters have
// events there.
type replay struct {
	s     *Store
	known map[uint32]*given // by the number of the account

	events, left int // how many were read, and have a key or user that is not there
}

// given are the largest numbers that an account has given to its keys and users. After
// a power cut the ledger may be ahead of the database: with events of what is not there
// any more, and whose number may be given again.
type given struct{ key, user int64 }

// openLedger opens the ledger and makes the counters whole.
func (s *Store) openLedger(o Options) error {
	d := o.disk
	if d == nil {
		d = systemDisk{}
	}
	dir := filepath.Join(s.dir, ledgerDir)
	if err := firstOf(os.MkdirAll(dir, 0o700), d.syncDir(s.dir)); err != nil {
		return err
	}
	all, err := openSegments(d, dir)
	if err != nil {
		return err
	}
	s.ledger.segments = all
	if o.segmentSize > 0 {
		all.size, all.ahead = o.segmentSize, o.ahead
	}
	mark, err := s.readMark()
	if err != nil {
		return err
	}
	return s.replayFrom(mark)
}

// readMark returns up to where the ledger was folded, and reads until when its segments
// are kept.
func (s *Store) readMark() (mark int64, err error) {
	err = s.db.View(func(txn *badger.Txn) error {
		r := snapshot{txn}
		if mark, err = r.number(at(kindFolded)); err != nil {
			return err
		}
		for _, g := range s.ledger.list {
			record, err := r.get(segmentKey(g.base))
			if err != nil {
				return err
			}
			if g.kept, err = decodeKept(record, s.clock.Load()); err != nil {
				return fmt.Errorf("%s: %w", g.name(), err)
			}
		}
		return nil
	})
	return max(mark, firstPosition), err
}

// replayFrom reads the ledger from a position to its end, and prepares it to be
// written from there.
func (s *Store) replayFrom(mark int64) error {
	l := s.ledger
	s.folder.mark.Store(mark)
	if n := len(l.list); n > 0 {
		l.written.Store(l.list[n-1].end) // as far as it can be read
	}
	r := replay{s: s, known: map[uint32]*given{}}
	end, err := r.run(mark)
	if err != nil {
		return err
	}
	if err := s.cut(end); err != nil {
		return err
	}
	l.current = l.last()
	l.end = end
	l.open = &block{start: end}
	l.written.Store(end)
	if l.power.Load() { // a process that was killed may have left what is not on the disk
		if err := l.sync(); err != nil {
			return err
		}
	}
	if r.left > 0 {
		s.log.Warn("the ledger has requests of keys or users that were not yet on the disk when the power failed", "dir", s.dir, "requests", r.left)
		return s.fold() // so that they are never read again
	}
	return nil
}

// run reads all events from a position on, and returns where they end. Only the last
// segment may be torn: each is on the disk before the next one is begun.
func (r *replay) run(from int64) (end int64, err error) {
	list := r.s.ledger.list
	if len(list) == 0 && from > firstPosition {
		return 0, fmt.Errorf("%w: it has no file, and was folded up to %d", errLedger, from)
	}
	end = from
	for i, g := range list {
		last := i == len(list)-1
		if g.end <= from && !last {
			continue // folded
		}
		if g.base > end {
			return 0, r.missing(i)
		}
		whole := false
		if end, whole, err = r.segment(g, max(from, g.base)); err != nil {
			return 0, err
		}
		if !whole && !last {
			return 0, fmt.Errorf("%w: %s cannot be read from byte %d on: without the files after it the store can be opened, and what they have is lost", errLedger, g.name(), g.offset(end))
		}
	}
	return end, nil
}

// missing returns the error of nothing being before a segment that is to be read.
func (r *replay) missing(i int) error {
	g := r.s.ledger.list[i]
	if i == 0 {
		return fmt.Errorf("%w: the file before %s is missing", errLedger, g.name())
	}
	before := r.s.ledger.list[i-1]
	return fmt.Errorf("%w: before %s the file %s is missing, or %s is cut off", errLedger, g.name(), segmentName(before.end), before.name())
}

// segment reads the events of a segment from a position on. It returns where they end,
// and whether that is where they have to.
func (r *replay) segment(g *segment, from int64) (end int64, whole bool, err error) {
	if from > g.end {
		return 0, false, fmt.Errorf("%w: %s ends at %d and was folded up to %d", errLedger, g.name(), g.end, from)
	}
	if missing, err := g.isMissing(from); err != nil || missing {
		return 0, false, firstOf(err, fmt.Errorf("%w: %s ends before %d, and was folded up to there", errLedger, g.name(), from))
	}
	in := bufio.NewReaderSize(io.NewSectionReader(g.file, g.offset(from), g.end-from), 1<<20)
	for end = from; ; {
		header, err := in.Peek(frameSize)
		if err != nil {
			return end, end == g.end, nonEOF(err)
		}
		size, ok := frame(header)
		if !ok || int64(size) > g.end-end {
			return end, false, nil
		}
		b := make([]byte, size)
		if _, err := io.ReadFull(in, b); err != nil {
			return end, false, nonEOF(err)
		}
		e, err := decodeEvent(b, end)
		if err != nil {
			return end, false, nil
		}
		if err := r.event(&e, end); err != nil {
			return end, false, err
		}
		end += int64(size)
		r.s.ledger.step(stepReplay)
	}
}

// noEvent is how many zeros no event ends with: it has the id of a key.
const noEvent = 32

// isMissing reports whether there is no event where one must end, but zeros.
func (g *segment) isMissing(end int64) (bool, error) {
	n := min(noEvent, end-g.base)
	if n == 0 {
		return false, nil
	}
	return g.onlyZeros(end-n, end)
}

// nonEOF returns an error that is not the end of a file.
func nonEOF(err error) error {
	if err == io.EOF || err == io.ErrUnexpectedEOF {
		return nil
	}
	return err
}

// event notes an event. One of a key or user that is not there any more still counts
// for the other: the events of that one have consecutive numbers.
func (r *replay) event(e *event, position int64) error {
	r.events++
	known, err := r.of(e.account)
	if err != nil {
		return err
	}
	key, user := e.refs()
	keyThere, userThere := key.number <= known.key, user.number <= known.user
	if !keyThere || !userThere {
		r.left++
	}
	g := r.s.ledger.at(position)
	g.kept = g.and(e.kept(r.s.clock.Load()))
	if keyThere {
		if e.requestID != "" {
			r.s.counters.shard(key).repeats.addLocked(repeat{key, e.requestID}, position)
		}
		err = r.counter(key, e, position)
	}
	if userThere && err == nil {
		err = r.counter(user, e, position)
	}
	return err
}

// of returns what an account has given.
func (r *replay) of(account uint32) (*given, error) {
	if g := r.known[account]; g != nil {
		return g, nil
	}
	g := new(given)
	err := r.s.db.View(func(txn *badger.Txn) error {
		sn := snapshot{txn}
		a, err := found[core.Account](sn, accountPath(int64(account)), core.ErrAccountNotFound)
		if err == core.ErrAccountNotFound {
			return nil
		}
		if err != nil {
			return err
		}
		g.key, err = sn.number(lastPath(a.ID, kindKey))
		if err != nil {
			return err
		}
		g.user, err = sn.number(lastPath(a.ID, kindUser))
		return err
	})
	r.known[account] = g
	return g, err
}

// counter notes an event of a counter.
func (r *replay) counter(of ref, e *event, position int64) error {
	sh := r.s.counters.shard(of)
	if c := sh.byRef[of]; c != nil {
		if position <= c.applied {
			return nil
		}
		c.changedLocked()
		return c.apply(e, of.kind, position)
	}
	h := sh.unfolded[of]
	h.position, h.events = position, h.events+1
	sh.unfolded[of] = h
	if h.events < oftenUnfolded {
		return nil
	}
	var t tally
	var base int64
	err := r.s.db.View(func(txn *badger.Txn) (err error) {
		t, base, err = r.s.readTally(snapshot{txn}, of, h)
		return err
	})
	if err != nil {
		return err
	}
	if t.applied > position { // the page is ahead, or the counter was deleted
		sh.unfolded[of] = head{position: position}
		return nil
	}
	c := sh.addLocked(of, position)
	c.readLocked(t, base)
	return nil
}

// cut ends the ledger at a position in its last segment. What is after it is room that was
// made, or was not written whole: then it was never answered, or the power failed before it
// was on the disk.
func (s *Store) cut(end int64) error {
	l := s.ledger
	if g := l.last(); g != nil && g.end != end {
		room, err := g.isRoom(end, l.ahead)
		if err != nil {
			return err
		}
		if g.room = g.end; !room {
			s.log.Warn("the ledger ends with what was not written whole", "file", g.path, "bytes", g.end-end)
			if err := firstOf(g.file.Truncate(g.offset(end)), g.file.sync()); err != nil {
				return err
			}
			g.room = end
		}
		g.end = end
	}
	return l.disk.syncDir(l.dir)
}
