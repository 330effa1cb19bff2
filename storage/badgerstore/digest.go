package badgerstore

import (
	"context"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/secrets"
	"github.com/limitkeeper/limitkeeper/storage/record"
)

// KeyByDigest implements [core.Store].
func (s *Store) KeyByDigest(_ context.Context, d secrets.Digest) (k *core.Key, err error) {
	err = s.read(func(r view) error {
		k, err = r.keyByDigest(d)
		return err
	})
	return k, err
}

func (r view) keyByDigest(d secrets.Digest) (*core.Key, error) {
	ref, err := r.get(digestPath(d))
	if err != nil || ref == nil {
		return nil, firstOf(err, core.ErrKeyNotFound)
	}
	account, seq, err := decodeRef(ref)
	if err != nil {
		return nil, err
	}
	value, err := r.existing(keyPath(account, seq))
	if err != nil {
		return nil, err
	}
	return record.Decode[core.Key](value)
}
