package service

import (
	"context"
	"errors"
	"strings"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/secrets"
)

// maxAdjustmentReason bounds the reason of an adjustment, in bytes.
const maxAdjustmentReason = 200

// checkAdjustment returns an error unless an adjustment is valid. Its meter is one of the account.
func (s *Service) checkAdjustment(ctx context.Context, account string, a *core.Adjustment) error {
	switch {
	case a.Set && (a.Value < 0 || a.Value > core.MaxLimit):
		return core.Invalid("set", "Set must be from 0 to 9007199254740991")
	case a.Value < -core.MaxLimit || a.Value > core.MaxLimit:
		return core.Invalid("delta", "Delta must be from -9007199254740991 to 9007199254740991")
	case !a.Set && a.Value == 0:
		return core.Invalid("delta", "Delta must not be 0")
	case strings.TrimSpace(a.Reason) == "" || len(a.Reason) > maxAdjustmentReason:
		return core.Invalid("reason", "Reason must be 1 to 200 bytes long")
	case a.Meter == core.MeterRequests:
		return nil
	}
	meters, err := s.meters.get(ctx, account)
	if err == nil && !meters.has(a.Meter) {
		err = core.Invalid("meter", "No limit of the account names this meter: "+secrets.Sanitize(a.Meter, 64))
	}
	return err
}

// AdjustmentCall is an adjustment with its request id, and the address of the caller.
type AdjustmentCall struct {
	core.Adjustment
	Own       bool   // of a key: adjust its own counter, for the limits of the key alone, even if the counter of its user decides
	RequestID string // two adjustments of one key or user with the same id are made once, within RequestIDRetention; "" for none
	IP        string // of the caller, for the history
}

// AdjustKey adjusts the counter that decides for a key, see [KeyUsage], or the counter of the key itself. It returns the usage afterwards, and whether the
// adjustment was made before with the same request id.
func (s *Service) AdjustKey(ctx context.Context, account, id string, a AdjustmentCall) (u *KeyUsage, repeated bool, err error) {
	repeated, err = s.adjust(ctx, account, &a, func() (c core.Consumption, err error) {
		k, err := s.store.Key(ctx, account, id)
		if err != nil {
			return c, err
		}
		return core.Consumption{KeyID: id, KeySeq: k.Seq, UserID: k.UserID, Shared: k.PlanID == "" && !a.Own, OwnOnly: k.PlanID == "" && a.Own}, nil
	})
	if err == nil {
		u, err = s.KeyUsage(ctx, account, id)
	}
	return u, repeated, err
}

// AdjustUser adjusts the counter of a user, which the keys without a plan of their own share. It returns the usage
// afterwards, and whether the adjustment was made before with the same request id.
func (s *Service) AdjustUser(ctx context.Context, account string, id int64, a AdjustmentCall) (u *UserUsage, repeated bool, err error) {
	repeated, err = s.adjust(ctx, account, &a, func() (core.Consumption, error) { return core.Consumption{UserID: id, Shared: true}, nil })
	if err == nil {
		u, err = s.UserUsage(ctx, account, id)
	}
	return u, repeated, err
}

// adjust makes an adjustment. locate returns the deciding counter; it is called again when the key has moved to another user.
func (s *Service) adjust(ctx context.Context, account string, a *AdjustmentCall, locate func() (core.Consumption, error)) (repeated bool, err error) {
	a.Reason = strings.TrimSpace(a.Reason)
	if err := s.checkAdjustment(ctx, account, &a.Adjustment); err != nil {
		return false, err
	}
	a.Reason = secrets.Sanitize(a.Reason, maxAdjustmentReason)
	for range maxStaleReads {
		c, err := locate()
		if err != nil {
			return false, err
		}
		u, err := s.store.User(ctx, account, c.UserID)
		if err != nil && c.KeyID == "" {
			return false, err
		}
		if err == nil {
			c.Account, c.Anchors, c.Retention, c.Adjustment = account, u.Anchors, s.retention(), &a.Adjustment
			c.Entry = core.Entry{At: s.now().UTC().Truncate(historyGranularity), KeyID: c.KeyID, UserID: c.UserID, IP: secrets.Sanitize(a.IP, core.MaxEntryAddress)}
			if a.RequestID != "" {
				c.RequestID = core.AdjustmentID + a.RequestID
			}
			repeated, err = s.auditedAdjustment(context.WithoutCancel(ctx), &c, a.RequestID)
			s.due.add(account, dueCounter{CounterID: c.DecidingCounter()})
		}
		if c.KeyID == "" || !errors.Is(err, core.ErrKeyNotFound) && !errors.Is(err, core.ErrUserNotFound) {
			return repeated, err
		}
	}
	return false, errStaleRead
}
