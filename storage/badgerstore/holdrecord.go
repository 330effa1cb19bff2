package badgerstore

import (
	"slices"

	"github.com/dgraph-io/badger/v4"
)

// batchedHold is the record of a hold in a batch of a checkpoint.
type batchedHold struct {
	requestKey
	open *openHold // nil when the hold is no longer open
}

// takeHolds adds the holds of a shard whose records the checkpoint has to write or to remove. The caller holds the lock of the shard.
func (b *batch) takeHolds(sh *shard) {
	for of, h := range sh.holdRecords {
		b.holds = append(b.holds, batchedHold{of, h})
		if h != nil {
			h.recorded = true
		}
	}
}

// markHoldsWritten removes the holds of a batch from the holds whose records are to be written, unless they have changed since.
func (b *batch) markHoldsWritten(all *counterCache) {
	for _, h := range b.holds {
		sh := all.shard(h.key)
		sh.mu.Lock()
		if now, has := sh.holdRecords[h.requestKey]; has && now == h.open {
			delete(sh.holdRecords, h.requestKey)
		}
		sh.mu.Unlock()
	}
}

// writeHolds writes the records of the open holds of a batch, and removes the records of the ended holds.
func (s *Store) writeHolds(list []batchedHold) error {
	for chunk := range slices.Chunk(list, maxWrites/2) {
		err := s.commitTxn(func(txn *badger.Txn) error {
			for _, h := range chunk {
				var value []byte
				if h.open != nil {
					value = encodeNumber(h.open.position)
				}
				if err := setOrDelete(txn, openHoldPath(h.key, h.id[1:]), value); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// loadHolds opens the holds that were open at the last checkpoint. The replay then opens and closes the holds of later events.
func (s *Store) loadHolds() error {
	var positions []int64
	err := s.inView(func(r view) error {
		return r.eachFrom(at(kindHold), at(kindHold), func(_ path, value []byte) (bool, error) {
			position, err := decodeNumber(value)
			positions = append(positions, position)
			return true, err
		})
	})
	for _, position := range positions {
		if err != nil {
			return err
		}
		var e event
		if e, err = s.event(position); err == nil && e.hold != nil {
			h := openHoldOf(&e, position)
			s.openHoldLocked(h)
			h.recorded = true
			delete(s.counters.shard(h.user).holdRecords, holdKey(h.user, h.id))
		}
	}
	return err
}

// hold replays an event that opens or ends a hold.
func (r *replay) hold(e *event, position int64) {
	if e.uncounted || e.HoldID == "" && e.Settlement == nil {
		return
	}
	s, id := r.s, e.HoldID
	key, user := e.refs()
	if e.key == 0 {
		key = user
	}
	if e.Settlement != nil {
		id = e.Settlement.HoldID
	}
	r.remembered++
	s.counters.shard(user).requestIDs.positions[holdKey(user, id)] = position
	open := s.counters.shard(key).openLocked(key, id)
	switch {
	case e.Settlement != nil && open != nil:
		s.closeHoldLocked(open)
	case e.Settlement == nil && open == nil && !r.dropped[key] && !r.dropped[user]:
		s.openHoldLocked(openHoldOf(e, position))
	}
}
