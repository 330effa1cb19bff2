package core

import (
	"context"
	"errors"
	"slices"

	"golang.org/x/sync/errgroup"
)

// Claim is the right of one caller to give digests to keys. Other callers of [Service.ClaimDigests] in the process wait for
// Release.
type Claim struct {
	Holders []*Key // the keys of any account that have the digests, in the order of the digests; nil for none

	digests []Digest
	release func()
}

// ClaimDigests claims digests and looks up the keys that have them. The caller calls Release. No digests need no claim.
func (s *Service) ClaimDigests(ctx context.Context, digests []Digest) (*Claim, error) {
	c := &Claim{digests: digests, release: func() {}}
	if len(digests) > 0 {
		s.givenDigests.Lock()
		c.release = s.givenDigests.Unlock
	}
	var err error
	if c.Holders, err = s.KeysByDigest(ctx, digests); err != nil {
		c.release()
		return nil, err
	}
	return c, nil
}

// Release ends the claim.
func (c *Claim) Release() { c.release() }

// holders returns the claimed digests with the keys that have them.
func (c *Claim) holders() map[Digest]*Key {
	holders := make(map[Digest]*Key, len(c.digests))
	for i, d := range c.digests {
		holders[d] = c.Holders[i]
	}
	return holders
}

// KeysByDigest returns the keys of any account that have the digests, in the order of digests, nil for a digest that no
// key has.
func (s *Service) KeysByDigest(ctx context.Context, digests []Digest) ([]*Key, error) {
	const parallel = 16 // look-ups at a time
	found := make([]*Key, len(digests))
	g, ctx := errgroup.WithContext(ctx)
	for part := range parallel {
		g.Go(func() (err error) {
			for i := part; i < len(digests) && err == nil; i += parallel {
				if found[i], err = s.store.KeyByDigest(ctx, digests[i]); errors.Is(err, ErrKeyNotFound) {
					found[i], err = nil, nil
				}
			}
			return err
		})
	}
	return found, g.Wait()
}

// claimDigest returns an error if another key has the digest, or gets it in this batch.
func (b *Batch) claimDigest(d Digest, key string) error {
	holder, given := b.holders[d]
	if !given {
		return invalid("key_sha256", "The value of a key cannot be chosen")
	}
	if other, taken := b.claims[d]; taken && other != key {
		return invalid("key_sha256", "Another key of the batch gets this value")
	}
	if holder != nil && holder.ID != key {
		now := holder
		if holder.AccountID == b.account {
			var err error
			if now, err = b.Key(holder.ID); err != nil && !errors.Is(err, ErrKeyNotFound) {
				return err
			}
		}
		if now != nil && slices.Contains(now.Digests(), d) {
			return invalid("key_sha256", "Another key has this value")
		}
	}
	b.claims[d] = key
	return nil
}
