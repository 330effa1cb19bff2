package webhook

import (
	"context"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
)

// feedInterval is the time between two looks for ended hours, and feedPause that between two parts of the work.
const (
	feedInterval = time.Minute
	feedPause    = time.Second
)

// feed writes the events limitkeeper.usage of all accounts until ctx ends.
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
		case <-d.hours:
		case <-time.After(wait):
		}
	}
}
