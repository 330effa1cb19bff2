package badgerstore

import (
	"context"
	"errors"
	"maps"

	"github.com/dgraph-io/badger/v4"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/record"
	"github.com/limitkeeper/limitkeeper/storage/resource"
)

// The keys, users and other resources of an account are removed in ordinary transactions: see [resource.Resources.PurgeAccount]. Pages of deleted counters,
// days, request ids, holds and the audit log stay behind. They are removed without a redo record. The last transaction removes the record of the account. Its
// redo record names the account as purged: a replay, which has rebuilt the pages from the event log, removes them there. The event log has this redo record
// behind every image that is older than the removal.

// purged names an account whose removal is complete.
type purged struct {
	number uint32
	id     string
}

// encode encodes a purged account: its number, 8 bytes, and its id, a text.
func (p purged) encode() path { return path(nil).number(int64(p.number)).text(p.id) }

func decodePurged(b path) (p purged, ok bool) {
	r := record.NewReader(b)
	p.number, p.id = uint32(r.Uint(8)), r.Text()
	return p, r.Ended() && !r.Failed()
}

// prefixes returns the prefixes of all records of the account outside of the registry, in the order of their removal. An index precedes the records that it
// lists, because a listed record that is missing is damage.
func (p purged) prefixes() (list []path) {
	for _, kind := range []byte{kindPages, kindCounter, kindDay, kindRequestID, kindHold} {
		list = append(list, at(kind).number(int64(p.number)))
	}
	for _, kind := range []byte{kindSet, kindUnique, kindKeyID, kindPlanID, kindUser, kindKey, kindPlan, kindDeleted, kindLast, kindPrices,
		byte(resource.Webhook) | 0x20, byte(resource.Event) | 0x20, byte(resource.Attempt) | 0x20, byte(resource.Webhook), byte(resource.Event),
		byte(resource.Attempt), kindAudit, kindAuditLog} {
		list = append(list, at(kind).text(p.id))
	}
	return list
}

// errPurgedEnough ends a call of Purge after purgeBytes.
var errPurgedEnough = errors.New("the next call goes on")

// purgeBytes is the size of the records after which a call of Purge ends: 1 MiB, about 4,000 records.
const purgeBytes = 1 << 20

// Purge implements [resource.Database]. It excludes checkpoints: a running checkpoint may have a counter from before its deletion, and write it again.
func (d database) Purge(ctx context.Context, a *core.Account) (more bool, err error) {
	s := d.s
	if err := s.enterToChange(); err != nil {
		return true, err
	}
	defer s.leave()
	s.checkpointer.running.Lock()
	defer s.checkpointer.running.Unlock()
	number, err := s.accounts.number(s, a.ID)
	if err != nil || number == 0 { // another call has removed the account
		return err != nil, fault(err)
	}
	p := purged{number, a.ID}
	s.forgetPurged([]purged{p})
	removed := 0
	pause := func(bytes int) error {
		if removed += bytes; removed >= purgeBytes {
			return errPurgedEnough
		}
		return firstOf(ctx.Err(), s.stopped())
	}
	err = p.remove(s.commitTxn, pause)
	if err == errPurgedEnough {
		return true, nil
	}
	return err != nil, fault(err)
}

// remove removes all records of an account, in transactions of commit: see removeIf.
func (p purged) remove(commit func(func(*badger.Txn) error) error, pause func(bytes int) error) error {
	for _, prefix := range p.prefixes() {
		if err := removeIf(commit, prefix, pause, func(path, []byte) (bool, error) { return true, nil }); err != nil {
			return err
		}
	}
	return nil
}

// removePurged removes all records of an account. The event log has the redo record of the removal, before the position upTo. The caller holds
// committing.
func (s *Store) removePurged(p purged, upTo int64) error {
	commit := func(fill func(*badger.Txn) error) error { return s.commitLocked(upTo, fill) }
	return p.remove(commit, func(int) error { return nil })
}

// forgetPurged removes accounts from memory: their request ids, holds and pending events, which the next checkpoint would write, their rankings and their
// numbers. Only a replay still has pending events of the accounts.
func (s *Store) forgetPurged(list []purged) {
	for _, p := range list {
		s.counters.each(func(sh *shard) {
			maps.DeleteFunc(sh.pending, func(of ref, _ pendingEvents) bool { return of.account == p.number })
			maps.DeleteFunc(sh.requestIDs.positions, func(id requestKey, _ int64) bool { return id.key.account == p.number })
			sh.requestIDs.removals++
		})
		s.rankings.Remove(p.id)
		s.accounts.byID.Delete(p.id)
	}
}
