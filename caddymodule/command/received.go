package command

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/limitkeeper/limitkeeper/core"
)

// maxReceivedLine bounds a line of a file of received events, in bytes. The data of an event has at most [core.MaxEventData] bytes, and the rest of the
// body a few hundred.
const maxReceivedLine = 64 << 10

// receivedEvent is the body of a delivery.
type receivedEvent struct {
	ID     string         `json:"id"`
	Source string         `json:"source"`
	Type   string         `json:"type"`
	Data   jsontext.Value `json:"data"`
}

// sumID identifies a sum of events: a meter of a key, or of a user if key is "".
type sumID struct {
	user  int64
	key   string
	meter string // requestCount for the number of requests
}

// requestCount stands for the number of requests in place of a meter. No meter can have this name.
const requestCount = core.MeterCount

// usageSums are sums of events.
type usageSums struct {
	byID   map[sumID]core.UsageMeter
	events int // the number of events
}

func (s *usageSums) add(id sumID, n core.UsageMeter) {
	if s.byID == nil {
		s.byID = map[sumID]core.UsageMeter{}
	}
	s.byID[id] = s.byID[id].Plus(n)
}

// requestCounts returns the numbers of requests as the numbers of requestCount.
func requestCounts(n core.Traffic) core.UsageMeter {
	return core.UsageMeter{MeterTraffic: core.MeterTraffic{Allowed: n.Allowed, Denied: n.Denied}}
}

func (s *usageSums) addEvent(u *core.UsageData) {
	id := sumID{user: u.UserID}
	if u.KeyID != nil {
		id = sumID{key: *u.KeyID}
	}
	s.events++
	for meter, n := range u.Meters {
		id.meter = meter
		s.add(id, n)
	}
	id.meter = requestCount
	s.add(id, requestCounts(u.Requests))
}

// receivedUsage adds up the received events of whole days. It needs about 80 bytes for each event, with its id, line and hash, and 200 bytes for each meter
// of a user or key.
type receivedUsage struct {
	account  string
	from, to core.Date // the days from from to to-1. 0 in from means the first whole day in the file
	start    core.Date // the first day of sums

	seen       map[[16]byte]seenEvent // by id
	sums       usageSums
	partialDay usageSums // only if from is 0: the sums of the day before start. An earlier event, or one of its first hour, makes this day whole

	repetitions  int
	otherEvents  int // events of other types
	otherDays    int // events of other days
	cutLines     int // lines that are not JSON
	firstCutLine int64
}

// seenEvent has the line of an event, and a hash of its numbers. A repetition must have the same numbers.
type seenEvent struct {
	line int64
	hash [8]byte
}

// read adds the events of a file that has the body of a delivery in each line. It skips empty lines. It counts and skips lines that are not JSON, because a
// crash of the receiver cuts a line. An error names the line.
func (r *receivedUsage) read(file io.Reader) error {
	r.seen, r.start = map[[16]byte]seenEvent{}, r.from
	lines := bufio.NewReaderSize(file, maxReceivedLine+1)
	for line := int64(1); ; line++ {
		text, err := lines.ReadSlice('\n')
		if errors.Is(err, bufio.ErrBufferFull) {
			return fmt.Errorf("line %d has more than %d bytes: want the body of a delivery in each line", line, maxReceivedLine)
		}
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		if text = bytes.TrimSpace(text); len(text) > 0 {
			if err := r.add(line, text); err != nil {
				return fmt.Errorf("line %d: %w", line, err)
			}
		}
		if err != nil {
			return nil
		}
	}
}

// add adds the event of a line.
func (r *receivedUsage) add(line int64, text []byte) error {
	var e receivedEvent
	switch v := jsontext.Value(text); {
	case !v.IsValid():
		if r.cutLines++; r.cutLines == 1 {
			r.firstCutLine = line
		}
		return nil
	case v.Kind() != '{':
		return errors.New("not the body of a delivery: want a JSON object")
	}
	if err := json.Unmarshal(text, &e); err != nil {
		return fmt.Errorf("not the body of a delivery: %w", oneLine(err))
	}
	switch want := core.EventSource(r.account); {
	case e.Source == "" || e.Type == "":
		return errors.New("not the body of a delivery: source or type is missing")
	case e.Source != want:
		return fmt.Errorf("the event is of another account: its source is %s, want %s", printable(e.Source), want)
	case e.Type != core.EventUsage:
		r.otherEvents++
		return nil
	}
	var u core.UsageData
	if err := json.Unmarshal(e.Data, &u); err != nil {
		return fmt.Errorf("not the data of an event %s: %w", core.EventUsage, oneLine(err))
	}
	counter := core.CounterID{Account: r.account, UserID: u.UserID}
	if u.KeyID != nil {
		counter = core.CounterID{Account: r.account, KeyID: *u.KeyID}
	}
	if e.ID != core.UsageEventID(counter, u.Hour) {
		return fmt.Errorf("%s is not the id of the hour %v of %s: the line is not as it was received", printable(e.ID), u.Hour, printable(counter.Subject()))
	}
	return r.addUsage(line, e.ID, &u)
}

// addUsage adds an event, unless it is a repetition.
func (r *receivedUsage) addUsage(line int64, id string, u *core.UsageData) error {
	var idBytes [16]byte
	if _, err := hex.Decode(idBytes[:], []byte(strings.TrimPrefix(id, "evt_"))); err != nil {
		return err
	}
	numbers, err := json.Marshal([]any{u.Requests, u.Meters}, json.Deterministic(true))
	if err != nil {
		return err
	}
	hash := sha256.Sum256(numbers)
	e := seenEvent{line, [8]byte(hash[:8])}
	if first, seen := r.seen[idBytes]; seen {
		if first.hash != e.hash {
			return fmt.Errorf("the event %s has other numbers than in line %d", id, first.line)
		}
		r.repetitions++
		return nil
	}
	r.seen[idBytes] = e
	r.sumsFor(u.Hour).addEvent(u)
	return nil
}

// sumsFor returns the sums to which an event of an hour belongs. It moves start back if the hour makes an earlier day whole.
func (r *receivedUsage) sumsFor(hour core.Date) *usageSums {
	day := hour.Day()
	if first := wholeDay(hour); r.from == 0 && (r.start == 0 || first < r.start) {
		r.sums.events += r.partialDay.events // the day before the former start is whole
		for id, n := range r.partialDay.byID {
			r.sums.add(id, n)
		}
		r.partialDay, r.start = usageSums{}, first
	}
	switch {
	case day >= r.to || day < r.start && r.from != 0:
		r.otherDays++
		return new(usageSums)
	case day < r.start:
		return &r.partialDay
	}
	return &r.sums
}

// wholeDay returns the first day that begins at the hour or later.
func wholeDay(hour core.Date) core.Date {
	if day := hour.Day(); day.Start().Equal(hour.Start()) {
		return day
	}
	return hour.Day() + 1
}

// counts returns the numbers of users and of keys with events.
func (r *receivedUsage) counts() (users, keys int) {
	for id := range maps.Keys(r.sums.byID) {
		switch {
		case id.meter != requestCount: // each user and key has this sum: it counts once
		case id.key != "":
			keys++
		default:
			users++
		}
	}
	return users, keys
}

// oneLine returns the first line of an error of the JSON package.
func oneLine(err error) error {
	text, _, _ := strings.Cut(err.Error(), "\n")
	return errors.New(printable(text))
}
