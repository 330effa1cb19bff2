package command

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/limitkeeper/limitkeeper/caddymodule"
	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/clocktest"
	"github.com/limitkeeper/limitkeeper/core/service"
)

// feedServer is a running server with an account, a plan, and webhooks that want the usage feed. Its clock begins an hour before day.
type feedServer struct {
	*server
	machine *clocktest.Clock
	account string
	plan    *core.Plan
	hooks   []*core.Webhook
	day     time.Time // the day before yesterday
}

// newFeedServer starts a feedServer with a webhook for each URL.
func newFeedServer(t *testing.T, urls ...string) *feedServer {
	f := &feedServer{server: newServer(t), day: time.Now().UTC().Truncate(24*time.Hour).AddDate(0, 0, -2)}
	f.machine = clocktest.New(f.day.Add(-time.Hour))
	caddymodule.ReadClock = f.machine.Read
	t.Cleanup(func() { caddymodule.ReadClock = nil })
	f.Start("store badger %dir/data\nwebhook_allow_private", "limitkeeper_api")
	ctx, svc := t.Context(), f.Service()
	a, _, _, err := svc.CreateAccount(ctx, "acme")
	f.Must(err)
	f.account = a.ID
	f.plan, err = svc.CreatePlan(ctx, a.ID, core.PlanPatch{Name: new("plan"), Limit: core.Some(int64(20)), Period: new("day"),
		Limits: core.Some([]core.Limit{{Meter: "tokens", Max: 100_000, Period: core.Month}})})
	f.Must(err)
	for _, url := range urls {
		w, err := svc.CreateWebhook(ctx, a.ID, core.WebhookPatch{URL: &url, Events: core.Some([]string{core.EventUsage})})
		f.Must(err)
		f.hooks = append(f.hooks, w)
	}
	return f
}

// user creates a user with an external id, and a key without a plan of its own.
func (f *feedServer) user(name string) (u *core.User, secret string) {
	f.T.Helper()
	u, err := f.Service().CreateUser(f.T.Context(), f.account, core.UserPatch{Name: &name, ExternalID: core.Some("cus_" + name), PlanID: core.Some(f.plan.ID)})
	f.Must(err)
	_, secret = f.key(u, core.KeyPatch{})
	return u, secret
}

func (f *feedServer) key(u *core.User, p core.KeyPatch) (*core.Key, string) {
	f.T.Helper()
	p.Name, p.UserID = new("key"), &u.ID
	k, secret, err := f.Service().CreateKey(f.T.Context(), f.account, p)
	f.Must(err)
	return k, secret
}

// use makes n requests of 100 tokens each, with a hold if hold is given. It returns the last decision.
func (f *feedServer) use(secret string, n int, hold ...time.Duration) (d service.Decision) {
	f.T.Helper()
	for range n {
		r := service.Request{Secret: secret, Endpoint: "/", Method: "GET", Cost: 1, Costs: []core.MeterCost{{Meter: "tokens", Cost: 100}}}
		if len(hold) > 0 {
			r.HoldFor = hold[0]
		}
		var err error
		d, err = f.Service().Validate(f.T.Context(), f.account, r)
		f.Must(err)
	}
	return d
}

// passTo advances the clock to a time.
func (f *feedServer) passTo(to time.Time) { f.machine.Pass(to.Sub(f.machine.Wall())) }

// write writes all writable hours of the feed.
func (f *feedServer) write() {
	f.T.Helper()
	for more := true; more; {
		var err error
		more, err = f.Service().WriteUsage(f.T.Context(), f.account)
		f.Must(err)
	}
}

// delivered writes all writable hours, and waits until all events are delivered.
func (f *feedServer) delivered() {
	f.T.Helper()
	f.write()
	began, last := time.Now(), time.Now()
	for ; ; time.Sleep(5 * time.Millisecond) {
		pending := 0
		for _, w := range f.hooks {
			_, n, err := f.Service().PendingEvents(f.T.Context(), f.account, w.ID, 0, 1)
			f.Must(err)
			pending += n
		}
		if pending == 0 {
			return
		}
		now := time.Now()
		if now.Sub(began) > time.Minute {
			f.T.Fatalf("%d events are not delivered within a minute", pending)
		}
		f.machine.Pass(now.Sub(last)) // to the next attempts
		last = now
	}
}

// usage runs a subcommand of usage with a standard input.
func (f *feedServer) usage(stdin string, args ...string) (string, error) {
	root, cmd := &cobra.Command{Use: "limitkeeper", SilenceUsage: true, SilenceErrors: true}, &cobra.Command{Use: "usage"}
	usageCommand(cmd)
	root.AddCommand(cmd)
	var out bytes.Buffer
	root.SetIn(strings.NewReader(stdin))
	root.SetOut(&out)
	root.SetArgs(append(append([]string{"usage"}, args...), "--address", f.Admin))
	err := root.Execute()
	return out.String(), err
}

// bodies is a receiver that stores the body of each delivery.
type bodies struct {
	*httptest.Server
	mu    sync.Mutex
	lines []string
}

func newBodies(t *testing.T) *bodies {
	b := new(bodies)
	b.Server = httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		b.mu.Lock()
		defer b.mu.Unlock()
		b.lines = append(b.lines, string(body))
	}))
	t.Cleanup(b.Close)
	return b
}

func (b *bodies) all() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.lines)
}

// traffic makes requests of three users on two days. It returns the second key of anna, and carl.
func (f *feedServer) traffic() (spare *core.Key, carl *core.User) {
	anna, secret := f.user("anna")
	spare, second := f.key(anna, core.KeyPatch{})
	bob, _ := f.user("bob")
	own, ownSecret := f.key(bob, core.KeyPatch{PlanID: core.Some(f.plan.ID)})
	carl, carls := f.user("carl")
	f.use(secret, 1) // on the day before
	f.passTo(f.day.Add(10 * time.Hour))
	f.use(secret, 3)
	f.use(second, 19) // 2 of them are denied
	f.use(ownSecret, 5)
	f.use(carls, 2)
	f.passTo(f.day.Add(11 * time.Hour))
	f.use(carls, 1)
	_, _, err := f.Service().AdjustUser(f.T.Context(), f.account, anna.ID, service.AdjustmentCall{Adjustment: core.Adjustment{Meter: "tokens", Value: -700, Reason: "goodwill"}})
	f.Must(err)
	_, _, err = f.Service().AdjustKey(f.T.Context(), f.account, own.ID, service.AdjustmentCall{Adjustment: core.Adjustment{Meter: "requests", Value: 3, Reason: "by hand"}})
	f.Must(err)
	f.passTo(f.day.Add(12*time.Hour + 30*time.Minute))
	f.write() // the feed begins
	f.use(carls, 1)
	return spare, carl
}

// usage verify finds each lost, altered or foreign event, and ignores repetitions.
func TestUsageVerify(t *testing.T) {
	b := newBodies(t)
	f := newFeedServer(t, b.URL)
	for _, want := range []string{"create a webhook that names the type limitkeeper.usage", "the feed begins within a minute"} {
		active := strings.HasPrefix(want, "the feed")
		_, err := f.Service().UpdateWebhook(t.Context(), f.account, f.hooks[0].ID, core.WebhookPatch{Active: &active})
		f.Must(err)
		if _, err := f.usage("", "verify", "acme", "--received", "-"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("before the first hour, with the webhook active %t: got %v, want %q", active, err, want)
		}
	}
	spare, carl := f.traffic()
	f.Must(f.Service().DeleteUser(t.Context(), f.account, carl.ID)) // with the hours that are not written
	f.passTo(time.Now())
	f.delivered()
	f.Must(f.Service().DeleteKey(t.Context(), f.account, spare.ID))
	lines := b.all()
	find := func(parts ...string) int {
		i := slices.IndexFunc(lines, func(line string) bool {
			return !slices.ContainsFunc(parts, func(part string) bool { return !strings.Contains(line, part) })
		})
		if i < 0 {
			t.Fatalf("no event with %q in\n%s", parts, strings.Join(lines, "\n"))
		}
		return i
	}
	hour := fmt.Sprintf(`"hour":"%sT10:00:00Z"`, f.day.Format(time.DateOnly))
	ten, ofKey := find(`"subject":"user_1"`, hour), find(`"subject":"key_`, `"user_id":2`, hour)
	without := func(i int) []string { return slices.Delete(slices.Clone(lines), i, i+1) }
	with := func(more ...string) []string { return append(slices.Clone(lines), more...) }
	changed := func(i int, from, to string) []string {
		list := slices.Clone(lines)
		if list[i] = strings.Replace(list[i], from, to, 1); list[i] == lines[i] {
			t.Fatalf("%q is not in %s", from, lines[i])
		}
		return list
	}
	day := f.day.Format(time.DateOnly)
	summary := fmt.Sprintf("Events %d, repetitions %%d, users 3, keys 4, days ", len(lines)-2) // without user and key of the day before
	for _, tc := range []struct {
		name  string
		lines []string
		flags []string
		fails string
		out   []string
	}{
		{"equal", lines, nil, "", []string{fmt.Sprintf(summary, 0), "from " + day, "All sums are equal to the report.", "Not compared: 2 usage events of other days, 0 events",
			"does not list 1 of the users", "does not list 2 of the keys"}},
		{"in another order", func() []string { list := slices.Clone(lines); slices.Reverse(list); return list }(), nil, "", []string{fmt.Sprintf(summary, 0)}},
		{"repeated", with(lines[ten], "", lines[ofKey]), nil, "", []string{fmt.Sprintf(summary, 2)}},
		{"repeated with another external id", append(changed(ten, "cus_anna", "cus_ann"), lines[ten]), nil, "", []string{fmt.Sprintf(summary, 1)}},
		{"another type", with(`{"id":"evt_1","source":"` + core.EventSource(f.account) + `","type":"limitkeeper.threshold","data":{}}`), nil, "", []string{"1 events of other types"}},
		{"a lost one of a user", without(ten), nil, "differ from the report in", []string{"user 1 requests allowed 0 20 ", "user 1 (number of requests) denied 0 2 ", "user 1 tokens used -700 1300 "}},
		{"a lost one of a key", without(ofKey), nil, "differ from the report in", []string{"key key_"}},
		{"the last one of a deleted user", without(find(`"subject":"user_3"`, "T12:00:00Z")), nil, "differ from the report in", []string{"deleted users tokens allowed 300 400 "}},
		{"altered", changed(ten, `"denied":2`, `"denied":1`), nil, "differ from the report in", []string{"denied"}},
		{"altered and repeated", append(changed(ten, `"denied":2`, `"denied":1`), lines[ten]), nil, fmt.Sprintf("line %d: the event evt_", len(lines)+1), nil},
		{"altered hour", changed(ten, hour, strings.Replace(hour, "10:00", "11:00", 1)), nil, fmt.Sprintf("line %d: evt_", ten+1), nil},
		{"altered user", changed(ten, `"user_id":1`, `"user_id":2`), nil, "is not the id of the hour", nil},
		{"another account", with(strings.ReplaceAll(lines[0], f.account, "acct_other")), nil, fmt.Sprintf("line %d: the event is of another account: its source is /limitkeeper/accounts/acct_other", len(lines)+1), nil},
		{"two cut lines", with(lines[0][:100], lines[0], lines[1][:99]), nil, "", []string{fmt.Sprintf("are not JSON, as a crash of the receiver leaves them: 2. The first is line %d.", len(lines)+1), "All sums are equal"}},
		{"no JSON", []string{"{", lines[0][1:]}, nil, "2 of its lines are not JSON, and line 1 is the first", nil},
		{"no object", with("[" + lines[0] + "]"), nil, "not the body of a delivery: want a JSON object", nil},
		{"no usage", with(`{"id":"evt_1","source":"` + core.EventSource(f.account) + `","type":"limitkeeper.usage","data":{"user_id":"1"}}`), nil, "not the data of an event limitkeeper.usage", nil},
		{"a long line", with(strings.Repeat("x", maxReceivedLine+1)), nil, fmt.Sprintf("line %d has more than 65536 bytes", len(lines)+1), nil},
		{"the day before, too", lines, []string{"--from", f.day.AddDate(0, 0, -1).Format(time.DateOnly)}, "", []string{fmt.Sprintf("Events %d,", len(lines)), "equal"}},
		{"a day without traffic", lines, []string{"--from", f.day.AddDate(0, 0, 1).Format(time.DateOnly)}, "", []string{"Events 0,", "equal"}},
		{"up to today", lines, []string{"--to", time.Now().UTC().AddDate(0, 0, 1).Format(time.DateOnly)}, "are not written yet: compare again", []string{"are not written yet: their usage is missing"}},
		{"nothing", nil, nil, "the file has no event limitkeeper.usage", nil},
		{"nothing, with days", nil, []string{"--from", day}, "differ from the report in", []string{"user 1 "}},
		{"no days", lines, []string{"--from", day, "--to", day}, "there is no day to compare: --to is " + day, nil},
		{"no date", lines, []string{"--from", "monday"}, "--from: want a day such as 2026-10-01", nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			out, err := f.usage(strings.Join(tc.lines, "\n"), append([]string{"verify", "acme", "--received", "-"}, tc.flags...)...)
			if tc.fails == "" && err != nil || tc.fails != "" && (err == nil || !strings.Contains(err.Error(), tc.fails)) {
				t.Errorf("got error %v, want %q", err, tc.fails)
			}
			for _, want := range tc.out {
				if !strings.Contains(strings.Join(strings.Fields(out), " ")+" ", want) {
					t.Errorf("got\n%swant %q in it", out, want)
				}
			}
		})
	}
	file := filepath.Join(t.TempDir(), "received.ndjson")
	f.Must(os.WriteFile(file, []byte("\n"+strings.Join(without(ten), "\n\n")+"\n"), 0o600))
	out, err := f.usage("", "verify", "acme", "--received", file, "--json")
	if err == nil || !strings.Contains(out, `{"of":"user 1","meter":"requests","number":"allowed","received":0,"report":20}`) || !strings.Contains(out, `"deleted_users":1`) {
		t.Errorf("a file, as JSON: got %v, %s", err, out)
	}
	for _, args := range [][]string{{"verify", "acme"}, {"verify", "acme", "--received", file + "x"}, {"verify", "other", "--received", file}} {
		if _, err := f.usage("", args...); err == nil {
			t.Errorf("%v: want an error", args)
		}
	}
}

// A user with an open hold waits, and usage verify and usage feed show this. After the settlement, the sums are equal.
func TestUsageVerifyWaiting(t *testing.T) {
	b := newBodies(t)
	f := newFeedServer(t, b.URL)
	if out, err := f.usage("", "feed", "acme"); err != nil || out != "The feed begins within a minute, with the hour in which the webhook was created.\n" {
		t.Errorf("before the first hour: got %q, %v", out, err)
	}
	_, secret := f.user("anna")
	f.passTo(f.day)
	f.use(secret, 1)
	f.passTo(f.day.Add(30 * time.Hour))
	d := f.use(secret, 1, 24*time.Hour)
	f.passTo(f.day.Add(48 * time.Hour).Add(core.UsageDelay))
	f.delivered()
	out, err := f.usage(strings.Join(b.all(), "\n"), "verify", "acme", "--received", "-")
	if err == nil || !strings.Contains(out, "User 1 waits for the end of its holds: its hours from ") || !strings.Contains(out, "tokens                allowed  100       200") {
		t.Errorf("with an open hold: got %v\n%s", err, out)
	}
	if out, _ := f.usage(strings.Join(b.all(), "\n"), "verify", "acme", "--received", "-", "--json"); !strings.Contains(out, `"complete":false`) {
		t.Errorf("with an open hold, as JSON: got %s", out)
	}
	if out, err = f.usage("", "feed", "acme"); err != nil || !strings.Contains(out, "Waiting users  1\n") || !strings.Contains(out, "USER  NEXT HOUR\n1     ") {
		t.Errorf("got %v\n%s", err, out)
	}
	_, err = f.Service().Settle(t.Context(), f.account, d.HoldID, &service.Final{Costs: []core.MeterCost{{Meter: "tokens", Cost: 812}}})
	f.Must(err)
	f.delivered()
	if out, err = f.usage(strings.Join(b.all(), "\n"), "verify", "acme", "--received", "-"); err != nil || !strings.Contains(out, "equal") {
		t.Errorf("after the settlement: got %v\n%s", err, out)
	}
	n := len(b.all())
	again := f.day.Add(29 * time.Hour).Format(time.RFC3339)
	if out, err = f.usage("", "feed", "acme", "--again-from", again); err != nil || !strings.Contains(out, "Next hour      "+again) {
		t.Errorf("got %v\n%s", err, out)
	}
	f.delivered()
	if got := len(b.all()); got != n+2 {
		t.Errorf("again: got %d deliveries more, want those of the user and its key", got-n)
	}
	if out, err = f.usage(strings.Join(b.all(), "\n"), "verify", "acme", "--received", "-", "--json"); err != nil || !strings.Contains(out, `"repetitions":2`) || !strings.Contains(out, `"complete":true`) {
		t.Errorf("after the repetition: got %v\n%s", err, out)
	}
	for again, want := range map[string]string{"noon": "--again-from: want an hour", "2020-01-01T00:00:00Z": "is not kept any more", f.day.Add(99 * time.Hour).Format(time.RFC3339): "is in the future"} {
		if _, err := f.usage("", "feed", "acme", "--again-from", again); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", again, err, want)
		}
	}
}
