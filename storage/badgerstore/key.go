package badgerstore

import (
	"context"
	"maps"
	"slices"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/record"
)

// Key implements [core.Store].
func (s *Store) Key(_ context.Context, account, id string) (k *core.Key, err error) {
	err = s.read(account, func(r snapshot) error {
		k, err = r.key(account, id)
		return err
	})
	return k, err
}

// Keys implements [core.Store].
func (s *Store) Keys(_ context.Context, account string, f core.KeyFilter, p core.Page) (list []*core.Key, total int, err error) {
	err = s.read(account, func(r snapshot) error {
		numbers, n, err := r.page(keyIndex(account, f), p)
		if err != nil {
			return err
		}
		total = n
		list, err = listed[core.Key](r, numbers, func(seq int64) path { return keyPath(account, seq) })
		return err
	})
	return list, total, err
}

// KeyByDigest implements [core.Store]. Only the read tells the account of the key. KeyByDigest therefore reads first. If a
// transaction of the account was being applied, it waits for that transaction and reads again.
func (s *Store) KeyByDigest(_ context.Context, d core.Digest) (k *core.Key, err error) {
	if err := s.enter(); err != nil {
		return nil, err
	}
	defer s.leave()
	for {
		txn, busy := s.beginAny()
		account, k, err := snapshot{txn}.keyByDigest(d)
		txn.Discard()
		waitFor := busyChannels(busy, account)
		if len(waitFor) == 0 {
			return k, fault(err)
		}
		for _, done := range waitFor {
			if err := s.await(done); err != nil {
				return nil, err
			}
		}
	}
}

// busyChannels returns the channels of the transactions that are being applied to an account, or to any account when
// account is "".
func busyChannels(busy map[string]chan struct{}, account string) []chan struct{} {
	if account == "" {
		return slices.Collect(maps.Values(busy))
	}
	if done, ok := busy[account]; ok {
		return []chan struct{}{done}
	}
	return nil
}

// key returns the key with an ID, or core.ErrKeyNotFound.
func (r snapshot) key(account, id string) (*core.Key, error) {
	seq, err := r.number(keyIDPath(account, id))
	if err != nil || seq == 0 {
		return nil, firstOf(err, core.ErrKeyNotFound)
	}
	return named[core.Key](r, keyPath(account, seq))
}

func (r snapshot) keyByDigest(d core.Digest) (account string, k *core.Key, err error) {
	ref, err := r.get(digestPath(d))
	if err != nil || ref == nil {
		return "", nil, firstOf(err, core.ErrKeyNotFound)
	}
	account, seq, err := decodeRef(ref)
	if err != nil {
		return "", nil, err
	}
	k, err = named[core.Key](r, keyPath(account, seq))
	return account, k, err
}

// Key implements [core.Tx].
func (t *tx) Key(id string) (*core.Key, error) {
	k, err := t.before.key(t.account, id)
	return k, fault(err)
}

// CountKeys implements [core.Tx].
func (t *tx) CountKeys(f core.KeyFilter) (int, error) { return t.count(keyIndex(t.account, f)) }

// PutKey implements [core.Tx].
func (t *tx) PutKey(k *core.Key) error {
	if err := t.writable(); err != nil {
		return err
	}
	old, err := t.keyNow(k.ID) // also of a new key: the caller may have stored it before, and got ErrUnavailable
	if err != nil {
		return t.keepError(err)
	}
	if err := t.assign(kindKey, &k.Seq); err != nil {
		return t.keepError(err)
	}
	return t.keepError(t.replaceKey(old, k))
}

// DeleteKey implements [core.Tx].
func (t *tx) DeleteKey(id string) error {
	k, err := t.keyNow(id)
	if err == nil && k == nil {
		return core.ErrKeyNotFound
	}
	if err != nil {
		return t.keepError(err)
	}
	return t.keepError(t.deleteKey(k))
}

// keyNow returns a key including the writes of the transaction, nil when the key does not exist.
func (t *tx) keyNow(id string) (*core.Key, error) {
	seq, err := t.seqNow(keyIDPath(t.account, id))
	if err != nil || seq == 0 {
		return nil, err
	}
	return t.keyAt(seq)
}

func (t *tx) keyAt(seq int64) (*core.Key, error) {
	value, err := t.get(keyPath(t.account, seq))
	if err != nil || value == nil {
		return nil, err
	}
	return record.Decode[core.Key](value)
}

// deleteKeyAt deletes the key with a Seq.
func (t *tx) deleteKeyAt(seq int64) error {
	k, err := t.keyAt(seq)
	if err != nil {
		return err
	}
	if k == nil {
		return absent(keyPath(t.account, seq))
	}
	return t.deleteKey(k)
}

func (t *tx) deleteKey(k *core.Key) error {
	return firstOf(t.replaceKey(k, nil), t.drop(kindKey, k.Seq))
}

// replaceKey replaces the record and the index entries of a key. from is nil for a new key, to is nil for a deletion.
func (t *tx) replaceKey(from, to *core.Key) error {
	var out, in int64
	var plans [2]string
	var users [2]int64
	if from != nil {
		out, users[0], plans[0] = from.Seq, from.UserID, from.PlanID
	}
	if to != nil {
		in, users[1], plans[1] = to.Seq, to.UserID, to.PlanID
	}
	if to != nil && t.newUsers[to.UserID] {
		if err := t.openNew(to); err != nil {
			return err
		}
	}
	return firstOf(
		t.replaceKeyRecord(from, to),
		t.replaceDigests(from, to),
		t.reindex(keyIndexes(t.account, from), keyIndexes(t.account, to), out, in),
		t.addHolding(users[0], plans[0], -1),
		t.addHolding(users[1], plans[1], +1))
}

// replaceKeyRecord replaces the record of a key, and the record that maps its ID to its number.
func (t *tx) replaceKeyRecord(from, to *core.Key) error {
	if from != nil && (to == nil || to.Seq != from.Seq) {
		if err := t.put(keyPath(t.account, from.Seq), nil); err != nil {
			return err
		}
	}
	if to == nil {
		return t.put(keyIDPath(t.account, from.ID), nil)
	}
	return firstOf(
		t.putJSON(keyPath(t.account, to.Seq), to),
		t.put(keyIDPath(t.account, to.ID), encodeNumber(to.Seq)))
}

// replaceDigests writes the digest records of to, and removes the digest records that only from has.
func (t *tx) replaceDigests(from, to *core.Key) error {
	var before, after []core.Digest
	if from != nil {
		before = from.Digests()
	}
	if to != nil {
		after = to.Digests()
	}
	for _, d := range before {
		if slices.Contains(after, d) {
			continue
		}
		if err := t.put(digestPath(d), nil); err != nil {
			return err
		}
	}
	for _, d := range after {
		if err := t.put(digestPath(d), encodeRef(t.account, to.Seq)); err != nil {
			return err
		}
	}
	return nil
}

// keyIndexes returns the indexes of a key.
func keyIndexes(account string, k *core.Key) (indexes []path) {
	for _, f := range k.Filters() {
		indexes = append(indexes, keyIndex(account, f))
	}
	return indexes
}
