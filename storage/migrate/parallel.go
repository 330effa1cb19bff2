package migrate

import (
	"context"
	"sync"
)

// inParallel calls fn in some goroutines with everything in a list.
func inParallel[T any](ctx context.Context, workers int, list []T, fn func(context.Context, T) error) error {
	return parallel(ctx, workers, fn, func(next func(T) error) error {
		for _, item := range list {
			if err := next(item); err != nil {
				return err
			}
		}
		return nil
	})
}

// parallel calls fn in some goroutines with everything that feed gives to next. The first
// error ends all of them and is returned.
func parallel[T any](ctx context.Context, workers int, fn func(context.Context, T) error, feed func(next func(T) error) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	work := make(chan T)
	var group sync.WaitGroup
	for range workers {
		group.Go(func() {
			for item := range work {
				if err := fn(ctx, item); err != nil {
					cancel(err)
					return
				}
			}
		})
	}
	err := feed(func(item T) error {
		select {
		case work <- item:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	})
	close(work)
	group.Wait()
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}
