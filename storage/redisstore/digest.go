package redisstore

import (
	"context"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/record"
	"github.com/limitkeeper/limitkeeper/storage/resource"
)

// KeyByDigest implements [core.Store]. The entry of the digest is in another slot, and lists every key that may have the
// digest. A transaction may move the digest between the reads of two keys. So KeyByDigest reads an entry of several keys twice.
func (s *Store) KeyByDigest(ctx context.Context, d core.Digest) (*core.Key, error) {
	if err := s.begin(); err != nil {
		return nil, err
	}
	defer s.end()
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
func (s *Store) digestHolders(ctx context.Context, d core.Digest) ([]string, error) {
	ctx, cancel := s.withTimeout(ctx)
	defer cancel()
	r := s.do(ctx, s.client.B().Get().Key(s.o.digest(d)).Build())
	if err := unavailable(r.Error()); err != nil {
		return nil, err
	}
	entry, err := r.ToString()
	if err != nil {
		return nil, nil
	}
	return strings.Split(entry, "\n"), nil
}

// claimDigests adds keys to the entries of their digests before the commit, so that a committed key is always found. The
// other keys of an entry stay: if the commit fails, they still have the digest.
func (s *Store) claimDigests(ctx context.Context, claims map[core.Digest]string) error {
	return s.eachDigest(ctx, claimDigestScript, claims)
}

// releaseDigests removes keys from the entries of their former digests. A failure is harmless: a key that lacks the
// digest is ignored.
func (s *Store) releaseDigests(ctx context.Context, releases map[core.Digest]string) {
	_ = s.eachDigest(ctx, releaseDigestScript, releases)
}

// eachDigest runs a script on the entry of each digest, in parallel.
func (s *Store) eachDigest(ctx context.Context, c *script, holders map[core.Digest]string) error {
	var g errgroup.Group
	g.SetLimit(maxParallel)
	for d, holder := range holders {
		g.Go(func() error {
			ctx, cancel := s.withTimeout(ctx)
			defer cancel()
			return unavailable(c.write(ctx, s, []string{s.o.digest(d)}, []string{holder}).Error())
		})
	}
	return g.Wait()
}
