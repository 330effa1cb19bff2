package archive

import (
	"context"

	"golang.org/x/sync/errgroup"
)

// workers is the number of calls to a store that run in parallel. On Redis each call waits for the network.
const workers = 16

// parallel calls fn with the numbers from 0 to n-1, in several goroutines. It returns the first error, which cancels the
// other calls.
func parallel(ctx context.Context, n int, fn func(ctx context.Context, i int) error) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(workers)
	for i := range n {
		g.Go(func() error { return fn(ctx, i) })
	}
	return g.Wait()
}
