package command

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/limitkeeper/limitkeeper/core"
)

const verifyExample = `limitkeeper usage verify acme --received received.ndjson
  limitkeeper usage verify acme --received received.ndjson --from 2026-10-01 --to 2026-11-01`

// usageVerifyCommand returns the command usage verify.
func usageVerifyCommand() *cobra.Command {
	cmd := subcommand("verify ACCOUNT", "Compares the events limitkeeper.usage that a receiver has stored with the usage report", verifyExample, runUsageVerify)
	cmd.Flags().String("received", "", "A file with the body of one delivery in each line; - for the standard input")
	cmd.Flags().String("from", "", "The first day, such as 2026-10-01; by default the first whole day in the file")
	cmd.Flags().String("to", "", "The day after the last one, such as 2026-11-01; by default the day of the next hour of the feed")
	return cmd
}

// maxDifferences bounds the differences that a verification lists.
const maxDifferences = 50

// usageDifference is a number that differs between the received events and the report.
type usageDifference struct {
	Of       string `json:"of"` // user 17, key key_… or deleted users
	Meter    string `json:"meter"`
	Number   string `json:"number"` // allowed, denied, adjusted or used
	Received int64  `json:"received"`
	Report   int64  `json:"report"`
}

// verification is the result of a comparison of received events with the report.
type verification struct {
	From            core.Date         `json:"from"`
	To              core.Date         `json:"to"`     // the day after the last one
	Events          int               `json:"events"` // the events of these days, each counted once
	Repetitions     int               `json:"repetitions"`
	OtherEvents     int               `json:"other_events"` // events of other types
	OtherDays       int               `json:"other_days"`   // events of other days
	CutLines        int               `json:"cut_lines"`    // lines that are not JSON
	FirstCutLine    int64             `json:"first_cut_line,omitzero"`
	Users           int               `json:"users"`
	Keys            int               `json:"keys"`
	DeletedUsers    int               `json:"deleted_users"` // users with events that the report does not list
	DeletedKeys     int               `json:"deleted_keys"`  // keys with events that the report does not list
	DifferenceCount int               `json:"difference_count"`
	Differences     []usageDifference `json:"differences"` // the first maxDifferences
	Complete        bool              `json:"complete"`    // all hours of the days are written
	NextHour        core.Date         `json:"next_hour"`
	WaitingCount    int               `json:"waiting_count"`

	waiting []core.WaitingUser // the first waiting users, see feedView
}

func runUsageVerify(c *adminClient, args []string) error {
	v, err := c.verifyUsage(args[0])
	if err != nil {
		return fmt.Errorf("verifying the usage events of account %q: %w", args[0], err)
	}
	if c.json {
		err = json.NewEncoder(c.out).Encode(v)
	} else {
		err = c.printVerification(v)
	}
	switch {
	case err != nil:
	case v.DifferenceCount > 0:
		err = fmt.Errorf("the events of account %q differ from the report in %d numbers", args[0], v.DifferenceCount)
	case !v.Complete:
		err = fmt.Errorf("some hours of account %q before %v are not written yet: compare again when limitkeeper usage feed shows that they are", args[0], v.To)
	}
	return err
}

// verifyUsage compares the received events with the report.
func (c *adminClient) verifyUsage(account string) (*verification, error) {
	var feed feedView
	if err := c.fetch(http.MethodGet, adminBase+feedPath(account), nil, &feed); err != nil {
		return nil, err
	}
	switch {
	case feed.NextHour == nil && feed.Wanted:
		return nil, errors.New("no event is written yet: the feed begins within a minute")
	case feed.NextHour == nil:
		return nil, errors.New("no event is written yet: create a webhook that names the type limitkeeper.usage")
	}
	r := &receivedUsage{account: feed.AccountID, to: feed.NextHour.Day()}
	for flag, day := range map[string]*core.Date{"from": &r.from, "to": &r.to} {
		if text := c.flags.String(flag); text != "" {
			var err error
			if *day, err = core.ParseDate(text); err != nil {
				return nil, fmt.Errorf("--%s: want a day such as 2026-10-01, got %q", flag, text)
			}
		}
	}
	if err := c.readReceived(r); err != nil {
		return nil, err
	}
	switch {
	case r.start == 0 && r.cutLines > 0:
		return nil, fmt.Errorf("the file has no event limitkeeper.usage: %d of its lines are not JSON, and line %d is the first. Want the body of one delivery in each line", r.cutLines, r.firstCutLine)
	case r.start == 0:
		return nil, errors.New("the file has no event limitkeeper.usage: name the days with --from and --to")
	case r.start >= r.to && c.flags.String("to") != "":
		return nil, fmt.Errorf("there is no day to compare: --to is %v, the day after the last one, and the first day is %v", r.to, r.start)
	case r.start >= r.to:
		return nil, fmt.Errorf("there is no whole day to compare yet: the first one in the file is %v, and the hours from %v on are not written. Compare again after that day", r.start, *feed.NextHour)
	}
	v := &verification{From: r.start, To: r.to, Events: r.sums.events, Repetitions: r.repetitions, OtherEvents: r.otherEvents, OtherDays: r.otherDays + r.partialDay.events,
		CutLines: r.cutLines, FirstCutLine: r.firstCutLine, NextHour: *feed.NextHour, WaitingCount: feed.WaitingCount, Differences: []usageDifference{}, waiting: feed.WaitingUsers}
	v.Users, v.Keys = r.counts()
	v.Complete = v.To <= v.NextHour.Day() && (feed.WaitingFrom == nil || feed.WaitingFrom.Day() >= v.To)
	for _, groups := range []string{"user,meter", "key,meter"} {
		if err := c.compareReport(account, groups, v, &r.sums); err != nil {
			return nil, err
		}
	}
	return v, nil
}

// readReceived reads the file that --received names.
func (c *adminClient) readReceived(r *receivedUsage) error {
	name, in := c.flags.String("received"), c.in
	switch name {
	case "":
		return errors.New("--received is missing: name the file with the stored bodies, or - for the standard input")
	case "-":
		name = "the standard input"
	default:
		file, err := os.Open(name)
		if err != nil {
			return err
		}
		defer file.Close()
		in = file
	}
	if err := r.read(in); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

// reportedUsage is a row of the report by user and meter, or by key and meter.
type reportedUsage struct {
	UserID *int64  `json:"user_id"`
	KeyID  *string `json:"key_id"`
	Meter  string  `json:"meter"`
	core.UsageMeter
	RequestsAllowed *int64 `json:"requests_allowed"`
	RequestsDenied  *int64 `json:"requests_denied"`
}

// comparison compares sums with the rows of a report by user or by key. It removes the sums that it has compared.
//
// In a report by key, an adjustment of a shared plan is in the row of the user without a key, and a moved key is at its new user. So keys are compared by
// their ids alone, and without adjustments. A deleted user or key has no row of its own. The row without a user has the sum of all deleted users.
type comparison struct {
	*verification
	sums    map[sumID]core.UsageMeter
	byKey   bool                       // the report is by key, otherwise by user
	listed  map[sumID]bool             // the users or keys with rows; the meter of each is ""
	deleted map[string]core.UsageMeter // by meter: the row of the deleted users
}

// compareReport reads the report by user or by key, and adds the differences to v.
func (c *adminClient) compareReport(account, groups string, v *verification, sums *usageSums) error {
	query := url.Values{"account": {account}, "from": {v.From.String()}, "to": {v.To.String()}, "group_by": {groups}, "format": {"ndjson"}}
	resp, err := c.request(http.MethodGet, adminBase+"usage?"+query.Encode(), nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	x := &comparison{v, sums.byID, strings.HasPrefix(groups, "key"), map[sumID]bool{}, map[string]core.UsageMeter{}}
	for rows := json.NewDecoder(resp.Body); ; {
		var row reportedUsage
		switch err := rows.Decode(&row); {
		case errors.Is(err, io.EOF):
			x.compareUnlisted()
			return nil
		case err != nil:
			return fmt.Errorf("the report is incomplete: run the command again, and read the log of the server: %w", err)
		}
		x.compareRow(&row, row.Meter, row.UsageMeter)
		if row.Meter == core.MeterRequests {
			x.compareRow(&row, requestCount, requestCounts(core.Traffic{Allowed: core.OrZero(row.RequestsAllowed), Denied: core.OrZero(row.RequestsDenied)}))
		}
	}
}

// compareRow compares the numbers of a meter in a row with the sum of the events.
func (x *comparison) compareRow(row *reportedUsage, meter string, report core.UsageMeter) {
	id := sumID{meter: meter}
	switch {
	case x.byKey && row.KeyID == nil:
		return
	case x.byKey:
		id.key = *row.KeyID
	case row.UserID == nil:
		x.deleted[meter] = report
		return
	default:
		id.user = *row.UserID
	}
	x.addDifferences(id.name(), meter, x.sums[id], report, x.byKey)
	delete(x.sums, id)
	x.listed[sumID{user: id.user, key: id.key}] = true
}

// compareUnlisted compares the sums without a row.
func (x *comparison) compareUnlisted() {
	deleted := map[string]core.UsageMeter{} // by meter: the sums of the users that the report does not list
	for _, id := range slices.SortedFunc(maps.Keys(x.sums), sumID.compare) {
		switch n := x.sums[id]; {
		case x.byKey != (id.key != ""):
		case x.listed[sumID{user: id.user, key: id.key}]:
			x.addDifferences(id.name(), id.meter, n, core.UsageMeter{}, x.byKey)
		case x.byKey && id.meter == requestCount: // each key has this sum: the key counts once
			x.DeletedKeys++
		case !x.byKey:
			deleted[id.meter] = deleted[id.meter].Plus(n)
			if id.meter == requestCount {
				x.DeletedUsers++
			}
		}
	}
	for meter := range x.deleted {
		deleted[meter] = deleted[meter].Plus(core.UsageMeter{}) // adds a meter that no event has
	}
	for _, meter := range slices.Sorted(maps.Keys(deleted)) {
		x.addDifferences("deleted users", meter, deleted[meter], x.deleted[meter], false)
	}
}

// compare orders sums by user, key and meter.
func (k sumID) compare(b sumID) int {
	return cmp.Or(cmp.Compare(k.user, b.user), cmp.Compare(k.key, b.key), cmp.Compare(k.meter, b.meter))
}

// name returns the user or key of a sum for display.
func (k sumID) name() string {
	if k.key != "" {
		return "key " + k.key
	}
	return fmt.Sprint("user ", k.user)
}

// addDifferences adds the numbers of a sum that differ. It does not compare adjusted and used of a key.
func (v *verification) addDifferences(of, meter string, received, report core.UsageMeter, ofKey bool) {
	if meter == requestCount {
		meter = "(number of requests)"
	}
	add := func(number string, received, report int64) {
		if received == report {
			return
		}
		if v.DifferenceCount++; len(v.Differences) < maxDifferences {
			v.Differences = append(v.Differences, usageDifference{of, meter, number, received, report})
		}
	}
	add("allowed", received.Allowed, report.Allowed)
	add("denied", received.Denied, report.Denied)
	if !ofKey {
		add("adjusted", received.Adjusted, report.Adjusted)
		add("used", received.Used, report.Used)
	}
}

// printVerification prints a verification as text.
func (c *adminClient) printVerification(v *verification) error {
	var text strings.Builder
	addLine := func(format string, args ...any) { fmt.Fprintf(&text, format+"\n", args...) }
	addLine("Events %d, repetitions %d, users %d, keys %d, days %d: from %v until %v (exclusive).", v.Events, v.Repetitions, v.Users, v.Keys, int(v.To-v.From), v.From, v.To)
	if v.OtherEvents+v.OtherDays > 0 {
		addLine("Not compared: %d usage events of other days, %d events of other types.", v.OtherDays, v.OtherEvents)
	}
	if v.CutLines > 0 {
		addLine("Lines that are not JSON, as a crash of the receiver leaves them: %d. The first is line %d.", v.CutLines, v.FirstCutLine)
	}
	if v.DeletedUsers > 0 {
		addLine("The report does not list %d of the users: their sum is compared with the row of the deleted users.", v.DeletedUsers)
	}
	if v.DeletedKeys > 0 {
		addLine("The report does not list %d of the keys, which are deleted: their usage is compared as that of their users.", v.DeletedKeys)
	}
	if v.NextHour.Day() < v.To {
		addLine("The hours from %v on are not written yet: their usage is missing in the events.", v.NextHour)
	}
	waiting := 0
	for _, w := range v.waiting {
		if w.From.Day() < v.To {
			if waiting++; waiting <= 3 {
				addLine("User %d waits for the end of its holds: its hours from %v on are not written yet.", w.UserID, w.From)
			}
		}
	}
	if waiting > 3 {
		addLine("%d users wait in all: limitkeeper usage feed lists the first 100.", v.WaitingCount)
	}
	if v.DifferenceCount == 0 {
		addLine("All sums are equal to the report.")
		return c.printf("%s", text.String())
	}
	if err := c.printf("%s", text.String()); err != nil {
		return err
	}
	rows := [][]string{{"OF", "METER", "NUMBER", "RECEIVED", "REPORT"}}
	for _, d := range v.Differences {
		rows = append(rows, []string{printable(d.Of), printable(d.Meter), d.Number, fmt.Sprint(d.Received), fmt.Sprint(d.Report)})
	}
	if err := c.table(rows); err != nil {
		return err
	}
	if more := v.DifferenceCount - len(v.Differences); more > 0 {
		return c.printf("… and %d more differences\n", more)
	}
	return nil
}
