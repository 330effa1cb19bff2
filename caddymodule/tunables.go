package caddymodule

import (
	"cmp"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/service"
)

// Tunables returns the configured settings of the service, with defaults.
func (a *App) Tunables() (service.Tunables, error) {
	t := service.DefaultTunables()
	if a.KeyCache < 0 {
		return t, fmt.Errorf("key_cache: want 1 or more, got %d", a.KeyCache)
	}
	if a.HistoryRetention < 0 {
		return t, fmt.Errorf("history_retention: want more than 0, got %s", time.Duration(a.HistoryRetention))
	}
	t.KeyCache = cmp.Or(a.KeyCache, t.KeyCache)
	t.Retention = cmp.Or(time.Duration(a.HistoryRetention), t.Retention)
	t.MaxUsers, t.MaxKeys, t.MaxPlans = a.MaxUsers, a.MaxKeys, a.MaxPlans // 0: the default
	t.WebhookAllowPrivate = a.WebhookAllowPrivate
	if min(a.MaxUsers, a.MaxKeys, a.MaxPlans) < 0 {
		return t, errors.New("max_users, max_keys, max_plans: want 1 or more")
	}
	if len(a.Thresholds) > 0 {
		if err := core.CheckEventThresholds(a.Thresholds); err != nil {
			return t, fmt.Errorf("thresholds: %w", err)
		}
		t.EventThresholds = a.Thresholds
	}
	if a.ServiceRateLimit == "" {
		return t, nil
	}
	var err error
	t.ThrottleLimit, t.ThrottleWindow, err = parseRate(a.ServiceRateLimit)
	return t, err
}

// maxRate is the highest service rate limit. The throttle keeps 8 bytes for each request in the
// window.
const maxRate = 1_000_000

// parseRate parses `<n>/<duration>` or `off`, which is the limit 0.
func parseRate(s string) (limit int, window time.Duration, err error) {
	if s == "off" {
		return 0, time.Minute, nil
	}
	n, d, _ := strings.Cut(s, "/")
	limit, err = strconv.Atoi(n)
	if err == nil {
		window, err = caddy.ParseDuration(d)
	}
	if err != nil || limit < 1 || limit > maxRate || window <= 0 {
		return 0, 0, fmt.Errorf("service_rate_limit: want <n>/<duration> like 1000/1m with n up to %d, or off; got %q", maxRate, s)
	}
	return limit, window, nil
}
