package service

import (
	"context"
	"errors"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/secrets"
)

// Claim is the right of one caller to give digests to keys, whatever the digests. Other callers of [Service.ClaimDigests] in the process wait
// for Release.
type Claim struct {
	Holders []*core.Key // the keys of any account that have the digests, in the order of the digests; nil for none

	digests []secrets.Digest
	release func()
}

// ClaimDigests claims digests and looks up the keys that have them. The caller calls Release. Without digests, the caller waits for
// nobody.
func (s *Service) ClaimDigests(ctx context.Context, digests []secrets.Digest) (*Claim, error) {
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
func (c *Claim) holders() map[secrets.Digest]*core.Key {
	holders := make(map[secrets.Digest]*core.Key, len(c.digests))
	for i, d := range c.digests {
		holders[d] = c.Holders[i]
	}
	return holders
}

// KeysByDigest returns the keys of any account that have the digests, in the order of digests, nil for a digest that no
// key has.
func (s *Service) KeysByDigest(ctx context.Context, digests []secrets.Digest) ([]*core.Key, error) {
	const parallel = 16 // look-ups at a time
	found := make([]*core.Key, len(digests))
	g, ctx := errgroup.WithContext(ctx)
	for part := range parallel {
		g.Go(func() (err error) {
			for i := part; i < len(digests) && err == nil; i += parallel {
				if found[i], err = s.store.KeyByDigest(ctx, digests[i]); errors.Is(err, core.ErrKeyNotFound) {
					found[i], err = nil, nil
				}
			}
			return err
		})
	}
	return found, g.Wait()
}

// claimDigest reserves a digest for a key. The error says that the caller has not claimed the digest, or that another key has it or gets it
// in this transaction.
func (b *Transaction) claimDigest(d secrets.Digest, key string) error {
	holder, given := b.holders[d]
	if !given {
		return core.Invalid("key_sha256", "The value of a key cannot be chosen")
	}
	if other, taken := b.claims[d]; taken && other != key {
		return core.Invalid("key_sha256", "Two keys get this value")
	}
	if holder != nil && holder.ID != key {
		now := holder
		if holder.AccountID == b.account {
			var err error
			if now, err = b.Key(holder.ID); err != nil && !errors.Is(err, core.ErrKeyNotFound) {
				return err
			}
		}
		if now != nil && slices.Contains(now.Digests(), d) {
			return core.Invalid("key_sha256", "Another key has this value")
		}
	}
	b.claims[d] = key
	return nil
}
