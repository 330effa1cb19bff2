package storetest

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"strings"
	"sync"

	"github.com/limitkeeper/limitkeeper/core"
)

var brokenPrices = []defect{
	{name: "has one list of prices for all accounts", caughtBy: "machine",
		open: wrapped(func(s core.Store) core.Store { return &sharesPrices{Store: s} })},
	{name: "keeps the prices of a transaction that failed", caughtBy: "machine",
		open: wrapped(func(s core.Store) core.Store { return keepsPrices{s} })},
	{name: "takes prices for a missing account", caughtBy: "machine",
		open: inTx(func(core.Store, string) func(core.Tx) core.Tx {
			return func(tx core.Tx) core.Tx { return takesPrices{tx} }
		})},
	{name: "sorts the rules of prices", caughtBy: "machine",
		open: inTx(func(core.Store, string) func(core.Tx) core.Tx {
			return func(tx core.Tx) core.Tx { return sortsPrices{tx} }
		})},
	{name: "reads prices before the transaction", caughtBy: "race/prices",
		open: inTx(func(s core.Store, account string) func(core.Tx) core.Tx {
			p, err := s.Prices(context.Background(), account)
			runtime.Gosched()
			return func(tx core.Tx) core.Tx { return readsPricesEarly{tx, p, err} }
		})},
}

// sharesPrices returns the prices that were put last into any account.
type sharesPrices struct {
	core.Store
	mu   sync.Mutex
	last string // the account
}

func (s *sharesPrices) Update(ctx context.Context, account string, fn func(core.Tx) error) error {
	err := s.Store.Update(ctx, account, fn)
	if p, _ := s.Store.Prices(ctx, account); p != nil && !p.UpdatedAt.IsZero() {
		s.mu.Lock()
		s.last = account
		s.mu.Unlock()
	}
	return err
}

func (s *sharesPrices) Prices(ctx context.Context, account string) (*core.Prices, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.last != "" {
		account = s.last
	}
	return s.Store.Prices(ctx, account)
}

type keepsPrices struct{ core.Store }

func (s keepsPrices) Update(ctx context.Context, account string, fn func(core.Tx) error) error {
	var put *core.Prices
	err := s.Store.Update(ctx, account, func(tx core.Tx) error { return fn(notesPrices{tx, &put}) })
	if err != nil && put != nil {
		return errors.Join(err, s.Store.Update(ctx, account, func(tx core.Tx) error { return tx.PutPrices(put) }))
	}
	return err
}

type notesPrices struct {
	core.Tx
	put **core.Prices
}

func (tx notesPrices) PutPrices(p *core.Prices) error {
	*tx.put = copyOf(p)
	return tx.Tx.PutPrices(p)
}

type takesPrices struct{ core.Tx }

func (tx takesPrices) PutPrices(p *core.Prices) error {
	if err := tx.Tx.PutPrices(p); !errors.Is(err, core.ErrAccountNotFound) {
		return err
	}
	return nil
}

type sortsPrices struct{ core.Tx }

func (tx sortsPrices) PutPrices(p *core.Prices) error {
	sorted := copyOf(p)
	slices.SortFunc(sorted.Rules, func(a, b core.PriceRule) int { return strings.Compare(b.Model, a.Model) })
	return tx.Tx.PutPrices(sorted)
}

type readsPricesEarly struct {
	core.Tx
	p   *core.Prices
	err error
}

func (tx readsPricesEarly) Prices() (*core.Prices, error) { return copyOf(tx.p), tx.err }
