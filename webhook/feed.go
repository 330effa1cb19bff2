package webhook

import (
	"context"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
)

const (
	feedInterval = time.Minute // between two searches for ended hours
	feedPause    = time.Second // between two calls of WriteUsage for an account that has more to write
)

// feed writes the usage feeds of all accounts until ctx ends.
func (d *Deliverer) feed(ctx context.Context) {
	for ctx.Err() == nil {
		wait := feedInterval
		err := d.o.Service.EachAccount(ctx, func(a *core.Account) error {
			more, err := d.o.Service.WriteUsage(ctx, a.ID)
			if more {
				wait = feedPause
			}
			if err != nil && ctx.Err() == nil {
				d.o.Logger.Warn("the usage events of an account cannot be written", "account", a.ID, "error", err)
			}
			return ctx.Err()
		})
		if err != nil && ctx.Err() == nil {
			d.o.Logger.Warn("the accounts cannot be read for usage events", "error", err)
		}
		select {
		case <-ctx.Done():
		case <-d.wakeFeed:
		case <-time.After(wait):
		}
	}
}
