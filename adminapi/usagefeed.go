package adminapi

import (
	"net/http"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/service"
)

// viewUsageFeed returns the JSON form of the state of a feed.
func viewUsageFeed(f service.UsageFeedState) object {
	waiting := viewEach(func(w core.WaitingUser) object { return object{{"user_id", w.UserID}, {"from", w.From}} }, f.FirstWaiting())
	return object{{"wanted", f.Wanted}, {"next_hour", orNull(f.Next)}, {"waiting_users", waiting}, {"waiting_count", len(f.Waiting)}}
}

// usageFeed answers with the state of the feed.
func usageFeed(c *call) error {
	f, err := c.svc.UsageFeed(c.ctx(), c.account)
	return reply(viewUsageFeed)(c, http.StatusOK, f, err)
}

// rewindUsageFeed makes the feed write the hours from next_hour on again.
func rewindUsageFeed(c *call) error {
	from, err := decode(c, readNextHour)
	if err != nil {
		return err
	}
	f, err := c.svc.RewindUsageFeed(c.ctx(), c.account, from)
	return reply(viewUsageFeed)(c, http.StatusOK, f, err)
}

// readNextHour reads the body of rewindUsageFeed.
func readNextHour(m *members) core.Date {
	m.Ignore("wanted", "waiting_users", "waiting_count")
	hour, err := core.ParseHour(m.Word("next_hour"))
	if err != nil {
		m.Wrong("next_hour", "Next_hour must be the first hour to write again: a whole hour in UTC, as in 2026-10-01T13:00:00Z")
	}
	return hour
}
