package badgerstore

import (
	"context"
	"maps"
	"slices"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/record"
)

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

func (r snapshot) keyByDigest(d core.Digest) (account string, k *core.Key, err error) {
	ref, err := r.get(digestPath(d))
	if err != nil || ref == nil {
		return "", nil, firstOf(err, core.ErrKeyNotFound)
	}
	account, seq, err := decodeRef(ref)
	if err != nil {
		return "", nil, err
	}
	value, err := r.existing(keyPath(account, seq))
	if err == nil {
		k, err = record.Decode[core.Key](value)
	}
	return account, k, err
}
