package migrate

import (
	"context"

	"golang.org/x/sync/errgroup"

	"github.com/limitkeeper/limitkeeper/core"
)

// parallel calls fn with each item of the pages that list gives to its argument, in several goroutines. It returns
// the first error, which cancels the other calls.
func parallel[T any](ctx context.Context, workers int, list func(context.Context, func([]T) error) error, fn func(context.Context, T) error) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(workers)
	err := list(ctx, func(items []T) error {
		for _, item := range items {
			if err := ctx.Err(); err != nil {
				return err
			}
			g.Go(func() error { return fn(ctx, item) })
		}
		return nil
	})
	if failed := g.Wait(); failed != nil {
		return failed
	}
	return err
}

// parallelCounters calls fn with the id of each counter of an account of the source.
func (m *migration) parallelCounters(ctx context.Context, account string, fn func(context.Context, core.CounterID) error) error {
	return parallel(ctx, m.o.Workers, func(ctx context.Context, page func([]core.CounterID) error) error {
		return m.eachCounters(ctx, account, page)
	}, fn)
}
