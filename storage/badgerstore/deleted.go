package badgerstore

import (
	"encoding/binary"
	"math"
	"slices"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/record"
)

// deletedPath returns the path of a chunk of days of the deleted users of an account, see [record.DeletedChunk].
func deletedPath(account string, chunk int64) path {
	return at(kindDeleted).text(account).number(chunk - math.MinInt32)
}

// chunkIn returns the number of the chunk at the end of a deletedPath.
func chunkIn(p path) int64 { return int64(binary.BigEndian.Uint64(p[len(p)-8:])) + math.MinInt32 }

// deletedAtOnce is the number of deleted users whose days are in memory at once: 400 days of three meters take 100 KB.
const deletedAtOnce = pageCells

// keepDeleted adds the days of the users that a transaction deletes to the days of the deleted users of the account.
func (s *Store) keepDeleted(w *writes, account string) error {
	var ids []core.CounterID
	for _, of := range w.dropped {
		if of.kind == kindUser {
			ids = append(ids, core.CounterID{Account: account, UserID: of.number})
		}
	}
	if ids == nil {
		return nil
	}
	sum := record.Days{}
	for some := range slices.Chunk(ids, deletedAtOnce) {
		lists, err := s.daysOfEntered(some, math.MinInt32, math.MaxInt32)
		if err != nil {
			return err
		}
		for _, list := range lists {
			sum.AddWhole(list)
		}
	}
	read := func(chunk int64) (b []byte, err error) {
		err = s.readEntered(func(r view) (err error) {
			b, err = r.get(deletedPath(account, chunk))
			return err
		})
		return b, err
	}
	return record.AddDeleted(sum.List(), read, func(chunk int64, b []byte) { w.put(deletedPath(account, chunk), b) })
}

// eachDeleted calls fn with each day of the deleted users of an account, from first to last, oldest first.
func (r view) eachDeleted(account string, first, last core.Date, fn func(core.CounterDay)) error {
	prefix := at(kindDeleted).text(account)
	return r.eachFrom(prefix, deletedPath(account, record.DeletedChunk(first)), func(p path, value []byte) (bool, error) {
		if chunkIn(p) > record.DeletedChunk(last) {
			return false, nil
		}
		days, err := record.DecodeDeleted(value)
		for _, d := range days {
			if first <= d.Date && d.Date <= last {
				fn(d)
			}
		}
		return true, err
	})
}

// deletedDays returns the days of the deleted users of an account.
func (s *Store) deletedDays(account string, first, last core.Date) (list []core.CounterDay, err error) {
	err = s.read(func(r view) error {
		return r.eachDeleted(account, first, last, func(d core.CounterDay) { list = append(list, d) })
	})
	return list, err
}

// setDeleted replaces the days of the deleted users of an account.
func (s *Store) setDeleted(account string, days []core.CounterDay) error {
	if err := s.enterToChange(); err != nil {
		return err
	}
	defer s.leave()
	w := newWrites()
	err := s.readEntered(func(r view) error {
		n, err := r.number(accountIDPath(account))
		if err == nil && n == 0 {
			err = core.ErrUserNotFound
		}
		return firstOf(err, r.eachDeleted(account, math.MinInt32, math.MaxInt32, func(d core.CounterDay) {
			w.put(deletedPath(account, record.DeletedChunk(d.Date)), nil)
		}))
	})
	if err != nil {
		return fault(err)
	}
	chunks, err := record.ChunksOf(record.Kept(record.WithoutShared(days)))
	for chunk, b := range chunks {
		w.put(deletedPath(account, chunk), b)
	}
	if err != nil || len(w.byPath) == 0 {
		return err
	}
	return fault(s.commit(w))
}
