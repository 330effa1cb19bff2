package redisstore

import (
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/secrets"
	"github.com/limitkeeper/limitkeeper/storage/record"
	"github.com/limitkeeper/limitkeeper/storage/resource"
)

// KeyByDigest implements [core.Store]. The entry of the digest is in another slot, and lists every key that may have the
// digest. A transaction may move the digest between the reads of two keys. So KeyByDigest reads an entry of several keys twice.
func (s *Store) KeyByDigest(ctx context.Context, d secrets.Digest) (*core.Key, error) {
	for range 2 {
		holders, err := s.digestHolders(ctx, d)
		if err != nil {
			return nil, err
		}
		for _, holder := range holders {
			account, id, _ := strings.Cut(holder, "\x00")
			records, err := s.newReader(ctx, resource.Scope{Account: account}).Records(resource.Key, id)
			if err != nil {
				return nil, err
			}
			if records[0] == nil {
				continue
			}
			k, err := record.Decode[core.Key](records[0])
			if err != nil || slices.Contains(k.Digests(), d) {
				return k, err
			}
		}
		if len(holders) < 2 {
			break
		}
	}
	return nil, core.ErrKeyNotFound
}

// digestHolders returns the account and id of each key that may have a digest.
func (s *Store) digestHolders(ctx context.Context, d secrets.Digest) ([]string, error) {
	entry, err := s.do(ctx, s.client.B().Get().Key(s.o.digest(d)).Build()).ToString()
	if err != nil {
		return nil, unavailable(err)
	}
	return strings.Split(entry, "\n"), nil
}

// eachDigest runs a script on the entry of each digest, in parallel.
func (s *Store) eachDigest(ctx context.Context, c *script, holders map[secrets.Digest]string) error {
	digests := slices.Collect(maps.Keys(holders))
	return parallel(len(digests), func(i int) error {
		d := digests[i]
		return unavailable(c.run(ctx, s.writes, []string{s.o.digest(d)}, []string{holders[d]}).Error())
	})
}
