package badgerstore

import (
	"hash/maphash"
	"sync"

	"github.com/limitkeeper/limitkeeper/storage/badgerstore/internal/cachetable"
)

// accountNumbers caches the numbers of accounts. The number of an account never changes.
type accountNumbers struct {
	mu   sync.Mutex // held to add a number
	byID cachetable.Table[string, uint32]
	seed maphash.Seed
}

// number returns the number of an account, 0 when there is no such account.
func (n *accountNumbers) number(s *Store, account string) (uint32, error) {
	hash := uint32(maphash.String(n.seed, account)) | 1<<31 // never 0
	if e := n.byID.Find(hash, account); e != nil {
		return e.Value, nil
	}
	var stored int64
	err := s.readEntered(func(r view) (err error) {
		stored, err = r.number(accountIDPath(account))
		return err
	})
	if err != nil || stored == 0 {
		return 0, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.byID.Find(hash, account) == nil {
		n.byID.Put(cachetable.NewEntry(hash, account, uint32(stored)))
	}
	return uint32(stored), nil
}

// forget removes the number of an account that is removed.
func (n *accountNumbers) forget(account string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.byID.Remove(uint32(maphash.String(n.seed, account))|1<<31, account)
}
