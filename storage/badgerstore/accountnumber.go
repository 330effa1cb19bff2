package badgerstore

import "sync"

// accountNumbers caches the numbers of accounts. The number of an account never changes.
type accountNumbers struct{ byID sync.Map } // from string to uint32

// number returns the number of an account, 0 if the account does not exist.
func (n *accountNumbers) number(s *Store, account string) (number uint32, err error) {
	if known, ok := n.byID.Load(account); ok {
		return known.(uint32), nil
	}
	err = s.readEntered(func(r view) error {
		stored, err := r.number(accountIDPath(account))
		number = uint32(stored)
		return err
	})
	if err == nil && number != 0 {
		n.byID.Store(account, number)
	}
	return number, err
}
