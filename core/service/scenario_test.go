package service_test

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/clocktest"
	"github.com/limitkeeper/limitkeeper/core/service"
	"github.com/limitkeeper/limitkeeper/storage/memstore"
)

// TestScenarios runs the scripts in testdata: calls of an account and requests of its
// customers, at given times. A line is a command, "->" and the expected result.
//
//	at TIME                                     lets time pass, or sets the wall clock back
//	wall TIME                                   sets the wall clock: the monotonic clock stays
//	pass DURATION                               lets time pass
//	plan NAME LIMIT/PERIOD|unlimited [exceed=allow] [limits=METER:MAX/PERIOD[/allow],…] [rate=N/PER:BURST] [active=false]
//	user NAME [plan=PLAN|none] [disabled=BOOL] [custom_start=TIME|none] [overrides=METER:MAX/PERIOD[/UNTIL],…]
//	key NAME [user=USER] [plan=PLAN|none] [status=S] [expires=TIME] [limits=…] [rate=…]   each creates or changes one
//	regenerate KEY [grace=DURATION]             the old value is then called KEY.old
//	delete key|user|plan NAME
//	validate KEY[.old] [cost=N] [costs=METER:N,…] [account=NAME] [id=REQUEST]
//	adjust KEY|USER METER DELTA|:N/PERIOD [id=REQUEST] [of=key]
//	usage KEY|USER
//	limits KEY
//	history KEY|USER
func TestScenarios(t *testing.T) {
	files, _ := filepath.Glob("testdata/*.scenario")
	if len(files) == 0 {
		t.Fatal("no scenario in testdata")
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".scenario"), func(t *testing.T) { runScenario(t, file) })
	}
}

type scenario struct {
	service *service.Service
	machine *clocktest.Clock
	account string
	plans   map[string]string
	users   map[string]int64
	keys    map[string]string
	secrets map[string]string
}

func runScenario(t *testing.T, file string) {
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	s := newScenario(t)
	for n, lines := 1, bufio.NewScanner(f); lines.Scan(); n++ {
		line, _, _ := strings.Cut(lines.Text(), "#")
		command, want, checked := strings.Cut(line, "->")
		words := strings.Fields(command)
		if len(words) == 0 {
			continue
		}
		got, err := s.run(t.Context(), words)
		if err != nil {
			got = answerOf(err)
		}
		if want = strings.Join(strings.Fields(want), " "); (checked || err != nil) && got != want {
			t.Errorf("%s:%d: %s\n got %s\nwant %s", file, n, strings.TrimSpace(command), got, want)
		}
	}
}

func newScenario(t *testing.T) *scenario {
	s := &scenario{machine: clocktest.New(at("2026-01-01T00:00:00Z")),
		plans: map[string]string{}, users: map[string]int64{}, keys: map[string]string{}, secrets: map[string]string{}}
	s.service = service.New(memstore.New(), service.Config{Clock: core.NewClock(s.machine.Read, nil).Now})
	a, _, _, err := s.service.CreateAccount(t.Context(), "default")
	if err != nil {
		t.Fatal(err)
	}
	s.account = a.ID
	return s
}

func answerOf(err error) string {
	if e, ok := errors.AsType[*core.Error](err); ok {
		return strings.TrimSpace(string(e.Code) + " " + e.Field)
	}
	return "fault: " + err.Error()
}

func (s *scenario) run(ctx context.Context, words []string) (string, error) {
	verb, rest := words[0], words[1:]
	opts := map[string]string{}
	var args []string
	for _, w := range rest {
		if k, v, ok := strings.Cut(w, "="); ok {
			opts[k] = v
		} else {
			args = append(args, w)
		}
	}
	switch verb {
	case "at", "wall", "pass":
		return "", s.clock(verb, args[0])
	case "plan":
		return "", s.plan(ctx, args, opts)
	case "user":
		return "", s.user(ctx, args[0], opts)
	case "key":
		return "", s.key(ctx, args[0], opts)
	case "regenerate":
		return "", s.regenerate(ctx, args[0], opts)
	case "delete":
		return "", s.delete(ctx, args[0], args[1])
	case "validate":
		return s.validate(ctx, args[0], opts)
	case "adjust":
		return s.adjust(ctx, args, opts)
	case "usage":
		return s.usage(ctx, args[0])
	case "limits":
		return s.limits(ctx, args[0])
	case "history":
		return s.history(ctx, args[0])
	}
	return "", fmt.Errorf("unknown command %q", verb)
}

func (s *scenario) clock(verb, to string) (err error) {
	var by time.Duration
	if verb == "pass" {
		by, err = time.ParseDuration(to)
	} else {
		by = at(to).Sub(s.machine.Wall())
	}
	if verb == "wall" || by < 0 {
		s.machine.Step(by)
	} else {
		s.machine.Pass(by)
	}
	return err
}

func (s *scenario) plan(ctx context.Context, args []string, opts map[string]string) error {
	var p core.PlanPatch
	if len(args) > 1 && args[1] == "unlimited" {
		p.Limit = core.Null[int64]()
	} else if len(args) > 1 {
		limit, period, _ := strings.Cut(args[1], "/")
		n, err := strconv.ParseInt(limit, 10, 64)
		if err != nil {
			return err
		}
		p.Limit, p.Period = core.Some(n), &period
	}
	var err error
	if p.Limits, p.Rate, err = limitOptions(opts); err != nil {
		return err
	}
	if v, ok := opts["exceed"]; ok {
		p.OnExceed = &v
	}
	if v, ok := opts["features"]; ok {
		p.Features = core.Some(strings.Split(v, ","))
	}
	if v, ok := opts["active"]; ok {
		p.Active = new(v == "true")
	}
	if id, ok := s.plans[args[0]]; ok {
		_, err := s.service.UpdatePlan(ctx, s.account, id, p)
		return err
	}
	p.Name = &args[0]
	pl, err := s.service.CreatePlan(ctx, s.account, p)
	if err == nil {
		s.plans[args[0]] = pl.ID
	}
	return err
}

// limitOptions reads limits=METER:MAX/PERIOD[/allow],… and rate=N/PER:BURST.
func limitOptions(opts map[string]string) (limits core.Optional[[]core.Limit], rate core.Optional[core.Rate], err error) {
	if v, ok := opts["limits"]; ok {
		list := []core.Limit{}
		for text := range strings.SplitSeq(strings.TrimPrefix(v, "none"), ",") {
			l, rest, err := limitOption(text)
			if err != nil {
				return limits, rate, err
			}
			if l.OnExceed = rest == "allow"; l.Meter != "" {
				list = append(list, l)
			}
		}
		limits = core.Some(list)
	}
	if v, ok := opts["rate"]; ok {
		var r core.Rate
		_, err = fmt.Sscanf(strings.NewReplacer(":", " ", "/", " ").Replace(v), "%d %s %d", &r.Requests, &r.Per, &r.Burst)
		rate = core.Some(r)
	}
	return limits, rate, err
}

// limitOption reads METER:MAX/PERIOD/REST.
func limitOption(text string) (l core.Limit, rest string, err error) {
	meter, text, _ := strings.Cut(text, ":")
	if meter == "" {
		return l, "", nil
	}
	parts := strings.SplitN(text+"/", "/", 3)
	if l.Max, err = strconv.ParseInt(parts[0], 10, 64); err == nil {
		l.Period, err = core.ParsePeriod(parts[1])
	}
	l.Meter = meter
	return l, strings.TrimSuffix(parts[2], "/"), err
}

// planRef reads plan=PLAN or plan=none.
func (s *scenario) planRef(opts map[string]string) core.Optional[string] {
	switch name, ok := opts["plan"]; {
	case !ok:
		return core.Optional[string]{}
	case name == "none":
		return core.Null[string]()
	case s.plans[name] == "":
		return core.Some(name)
	default:
		return core.Some(s.plans[name])
	}
}

func (s *scenario) user(ctx context.Context, name string, opts map[string]string) error {
	p := core.UserPatch{PlanID: s.planRef(opts)}
	if v, ok := opts["disabled"]; ok {
		p.Disabled = new(v == "true")
	}
	if v, ok := opts["custom_start"]; ok {
		p.CustomStart = core.Null[time.Time]()
		if v != "none" {
			p.CustomStart = core.Some(at(v))
		}
	}
	if v, ok := opts["overrides"]; ok {
		list := []core.Override{}
		for text := range strings.SplitSeq(strings.TrimPrefix(v, "none"), ",") {
			l, until, err := limitOption(text)
			o := core.Override{Meter: l.Meter, Max: l.Max, Period: l.Period}
			if err != nil {
				return err
			}
			if until != "" {
				o.Until = new(at(until))
			}
			if o.Meter != "" {
				list = append(list, o)
			}
		}
		p.Overrides = core.Some(list)
	}
	if id, ok := s.users[name]; ok {
		_, err := s.service.UpdateUser(ctx, s.account, id, p)
		return err
	}
	p.Name = &name
	u, err := s.service.CreateUser(ctx, s.account, p)
	if err == nil {
		s.users[name] = u.ID
	}
	return err
}

func (s *scenario) key(ctx context.Context, name string, opts map[string]string) error {
	p := core.KeyPatch{PlanID: s.planRef(opts)}
	if v, ok := opts["user"]; ok {
		p.UserID = new(s.users[v])
	}
	if v, ok := opts["status"]; ok {
		p.Status = &v
	}
	if v, ok := opts["expires"]; ok {
		p.ExpiresAt = core.Some(at(v))
	}
	var err error
	if p.Limits, p.Rate, err = limitOptions(opts); err != nil {
		return err
	}
	for option, list := range map[string]*core.Optional[[]string]{"scopes": &p.Scopes, "endpoints": &p.AllowedEndpoints, "ips": &p.AllowedIPs} {
		switch v, ok := opts[option]; {
		case ok && v == "none":
			*list = core.Null[[]string]()
		case ok:
			*list = core.Some(strings.Split(strings.ReplaceAll(v, "_", " "), ","))
		}
	}
	if id, ok := s.keys[name]; ok {
		_, err := s.service.UpdateKey(ctx, s.account, id, p)
		return err
	}
	p.Name = &name
	k, secret, err := s.service.CreateKey(ctx, s.account, p)
	if err == nil {
		s.keys[name], s.secrets[name] = k.ID, secret
	}
	return err
}

func (s *scenario) regenerate(ctx context.Context, name string, opts map[string]string) error {
	grace, _ := time.ParseDuration(opts["grace"])
	_, secret, err := s.service.RegenerateKey(ctx, s.account, s.keys[name], grace)
	if err == nil {
		s.secrets[name+".old"], s.secrets[name] = s.secrets[name], secret
	}
	return err
}

func (s *scenario) delete(ctx context.Context, kind, name string) error {
	switch kind {
	case "key":
		return s.service.DeleteKey(ctx, s.account, s.keys[name])
	case "user":
		return s.service.DeleteUser(ctx, s.account, s.users[name])
	default:
		return s.service.DeletePlan(ctx, s.account, s.plans[name])
	}
}

func (s *scenario) validate(ctx context.Context, name string, opts map[string]string) (string, error) {
	r := service.Request{Secret: s.secrets[name], Endpoint: "/", Method: "GET", Cost: 1, RequestID: opts["id"]}
	if secret, ok := opts["secret"]; ok {
		r.Secret = secret
	}
	if v, ok := opts["cost"]; ok {
		r.Cost, _ = strconv.ParseInt(v, 10, 64)
	}
	if v, ok := opts["costs"]; ok {
		for text := range strings.SplitSeq(v, ",") {
			meter, n, _ := strings.Cut(text, ":")
			cost, _ := strconv.ParseInt(n, 10, 64)
			r.Costs = append(r.Costs, core.MeterCost{Meter: meter, Cost: cost})
		}
	}
	r.IP, r.Endpoint, r.Method = opts["ip"], cmp.Or(opts["endpoint"], r.Endpoint), cmp.Or(opts["method"], r.Method)
	if v, ok := opts["scopes"]; ok {
		r.Scopes = strings.Split(v, ",")
	}
	if v, ok := opts["features"]; ok {
		r.Features = strings.Split(v, ",")
	}
	account := s.account
	if v, ok := opts["account"]; ok {
		account = v
	}
	d, err := s.service.Validate(ctx, account, r)
	if err != nil {
		return "", err
	}
	out := string(d.Outcome)
	if d.Outcome == service.Restricted {
		out += " by " + d.Refusal().Field
	}
	if d.RetryAfter > 0 {
		out += fmt.Sprintf(" retry in %v", d.RetryAfter)
	}
	if d.HasUsage() && (d.Limits != nil || d.Limit.Unlimited()) {
		out += " " + limitText(d.LimitUsage)
	} else if d.HasUsage() {
		out += fmt.Sprintf(" %d/%d left %d until %s", d.Usage.Used, d.Limit.Max, d.Remaining(), d.Usage.Window.End.Format(time.DateOnly)) + originText(d.LimitUsage)
	}
	if d.RefusedBy == core.OfKey {
		out += " at the rate of the key"
	}
	if d.Repeated {
		out += " again on " + d.Plan.Name
	}
	return out, nil
}

// limitText writes a limit as in "7/10 requests until 2026-03-03T00:00:00Z".
func limitText(u core.LimitUsage) string {
	limit, end := strconv.FormatInt(u.Max, 10), "ever"
	if u.Limit.Unlimited() {
		limit = "unlimited"
	}
	if u.Window.Ends() {
		end = u.Window.End.Format(time.RFC3339)
	}
	return fmt.Sprintf("%d/%s %s until %s", u.Used, limit, u.Meter, end) + originText(u)
}

// originText writes the owner of a limit, but for a plan, and the overage.
func originText(u core.LimitUsage) (text string) {
	if u.Of != core.OfPlan {
		text = " of the " + string(u.Of)
	}
	if n := u.Overage(); n != nil {
		text += fmt.Sprintf(" overage %d", *n)
	}
	return text
}

// limits returns all limits of a key.
func (s *scenario) limits(ctx context.Context, name string) (string, error) {
	u, err := s.service.KeyUsage(ctx, s.account, s.keys[name])
	if err != nil {
		return "", err
	}
	var list []string
	for _, l := range u.Limits {
		list = append(list, limitText(l))
	}
	return strings.Join(list, ", "), nil
}

func (s *scenario) adjust(ctx context.Context, args []string, opts map[string]string) (string, error) {
	a := service.AdjustmentCall{Adjustment: core.Adjustment{Meter: args[1], Reason: "a grant"}, RequestID: opts["id"], Own: opts["of"] == "key"}
	value, period, _ := strings.Cut(args[2], "/")
	if n, set := strings.CutPrefix(value, ":"); set {
		value, a.Set = n, true
		a.Period, _ = core.ParsePeriod(period)
	}
	a.Value, _ = strconv.ParseInt(value, 10, 64)
	var repeated bool
	var err error
	if id, ok := s.users[args[0]]; ok {
		_, repeated, err = s.service.AdjustUser(ctx, s.account, id, a)
	} else {
		_, repeated, err = s.service.AdjustKey(ctx, s.account, s.keys[args[0]], a)
	}
	if repeated {
		return "again", err
	}
	return "", err
}

func (s *scenario) usage(ctx context.Context, name string) (string, error) {
	if id, ok := s.users[name]; ok {
		u, err := s.service.UserUsage(ctx, s.account, id)
		if err != nil {
			return "", err
		}
		return fmt.Sprintf("%d/%d %q", u.Used, u.Limit, u.PlanNames()), nil
	}
	if id, ok := s.plans[name]; ok {
		u, err := s.service.PlanUsage(ctx, s.account, id)
		if err != nil {
			return "", err
		}
		return fmt.Sprintf("%d by %d users, %v each", u.Used, u.Users, u.Average()), nil
	}
	u, err := s.service.KeyUsage(ctx, s.account, s.keys[name])
	if err != nil {
		return "", err
	}
	used := "never used"
	if !u.LastUsedAt.IsZero() {
		used = "used " + u.LastUsedAt.Format(time.RFC3339)
	}
	return fmt.Sprintf("%d/%d of %s a %v, %s, omitted %d", u.Used, u.Plan.Limit, u.Plan.Name, u.Plan.Period, used, u.DeniedOmitted), nil
}

func (s *scenario) history(ctx context.Context, name string) (string, error) {
	list := func() ([]core.Entry, int, error) {
		if id, ok := s.users[name]; ok {
			return s.service.UserHistory(ctx, s.account, id, core.Page{Number: 1, Size: 100})
		}
		return s.service.KeyHistory(ctx, s.account, s.keys[name], core.Page{Number: 1, Size: 100})
	}
	entries, n, err := list()
	if err != nil {
		return "", err
	}
	out := strconv.Itoa(n)
	for _, e := range entries {
		status := "allowed"
		if e.Denied {
			status = "denied"
		}
		if e.Denied && e.Reason != core.ReasonQuota {
			status += ":" + string(e.Reason)
		}
		if e.Adjustment != nil {
			status = "adjusted"
		}
		out += fmt.Sprintf(" %s@%s", status, e.At.Format("15:04:05"))
	}
	return out, nil
}
