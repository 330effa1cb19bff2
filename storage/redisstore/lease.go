package redisstore

import (
	"context"
	"strconv"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
)

// Lease implements [core.LeaseStore]. Redis measures the time, so the clocks of the processes need not agree.
func (s *Store) Lease(ctx context.Context, name, holder string, d time.Duration) (held bool, err error) {
	answer, err := leaseScript.run(ctx, s.reads, []string{s.o.registry().key("lease:" + name)}, []string{holder, strconv.FormatInt(d.Milliseconds(), 10)}).AsInt64()
	return answer == 1, unavailable(err)
}

// Confirm implements [core.LeaseStore].
func (s *Store) Confirm(ctx context.Context, account string) error {
	return s.confirm(ctx, s.o.account(account))
}

var _ core.LeaseStore = (*Store)(nil)
