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

// maxReceived bounds a line of a file of received events, in bytes. A body has at most [core.MaxEventData] bytes and a few hundred.
const maxReceived = 64 << 10

// receivedEvent is the body of a delivery.
type receivedEvent struct {
	ID     string         `json:"id"`
	Source string         `json:"source"`
	Type   string         `json:"type"`
	Data   jsontext.Value `json:"data"`
}

// usageOf identifies a sum: a meter of a key, or of a user if key is "". The meter [core.MeterCount] stands for the numbers of requests.
type usageOf struct {
	user  int64
	key   string
	meter string
}

// usageSums are sums of events.
type usageSums struct {
	of     map[usageOf]core.UsageMeter
	events int
}

func (s *usageSums) add(of usageOf, n core.UsageMeter) {
	if s.of == nil {
		s.of = map[usageOf]core.UsageMeter{}
	}
	s.of[of] = s.of[of].Plus(n)
}

// requestNumbers returns the numbers of requests in the form of the numbers of [core.MeterCount].
func requestNumbers(n core.Traffic) core.UsageMeter {
	return core.UsageMeter{MeterTraffic: core.MeterTraffic{Allowed: n.Allowed, Denied: n.Denied}}
}

func (s *usageSums) addEvent(u *core.UsageData) {
	of := usageOf{user: u.UserID}
	if u.KeyID != nil {
		of = usageOf{key: *u.KeyID}
	}
	s.events++
	for meter, n := range u.Meters {
		of.meter = meter
		s.add(of, n)
	}
	of.meter = core.MeterCount
	s.add(of, requestNumbers(u.Requests))
}

// received adds up received events of whole days. It keeps 16 bytes of each id with its line and a hash of its numbers, and the sums: about 80 bytes for each event, and
// 200 for each meter of a user or key.
type received struct {
	account  string
	from, to core.Date // the days from from to to-1; a from of 0 stands for the first whole day
	start    core.Date // the first whole day: from, if from is not 0

	seen   map[[16]byte]seenEvent
	sums   usageSums
	before usageSums // without from: the events of the day before start, which is not whole unless an earlier event follows

	repetitions int
	others      int // events of other types
	outside     int // events of other days
	cut         int // lines that are not JSON
	firstCut    int64
}

// seenEvent is the line and the numbers of an event that was read, for its repetitions.
type seenEvent struct {
	line    int64
	numbers [8]byte // a hash
}

// read adds the events of a file with one body in each line. Empty lines are skipped. Lines that are not JSON are counted: a crash of the receiver cuts a
// line. An error names the line.
func (r *received) read(file io.Reader) error {
	r.seen, r.start = map[[16]byte]seenEvent{}, r.from
	lines := bufio.NewReaderSize(file, maxReceived+1)
	for line := int64(1); ; line++ {
		text, err := lines.ReadSlice('\n')
		if errors.Is(err, bufio.ErrBufferFull) {
			return fmt.Errorf("line %d has more than %d bytes: want the body of a delivery in each line", line, maxReceived)
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
func (r *received) add(line int64, text []byte) error {
	var e receivedEvent
	switch v := jsontext.Value(text); {
	case !v.IsValid():
		if r.cut++; r.cut == 1 {
			r.firstCut = line
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
		r.others++
		return nil
	}
	var u core.UsageData
	if err := json.Unmarshal(e.Data, &u); err != nil {
		return fmt.Errorf("not the data of an event %s: %w", core.EventUsage, oneLine(err))
	}
	of := core.CounterID{Account: r.account, UserID: u.UserID}
	if u.KeyID != nil {
		of = core.CounterID{Account: r.account, KeyID: *u.KeyID}
	}
	if e.ID != core.UsageEventID(of, u.Hour) {
		return fmt.Errorf("%s is not the id of the hour %v of %s: the line is not as it was received", printable(e.ID), u.Hour, printable(of.Subject()))
	}
	return r.addUsage(line, e.ID, &u)
}

// addUsage adds an event, unless it is a repetition.
func (r *received) addUsage(line int64, id string, u *core.UsageData) error {
	var key [16]byte
	if _, err := hex.Decode(key[:], []byte(strings.TrimPrefix(id, "evt_"))); err != nil {
		return err
	}
	numbers, err := json.Marshal([]any{u.Requests, u.Meters}, json.Deterministic(true))
	if err != nil {
		return err
	}
	hash := sha256.Sum256(numbers)
	e := seenEvent{line, [8]byte(hash[:8])}
	if first, seen := r.seen[key]; seen {
		if first.numbers != e.numbers {
			return fmt.Errorf("the event %s has other numbers than in line %d", id, first.line)
		}
		r.repetitions++
		return nil
	}
	r.seen[key] = e
	r.sumOf(u.Hour).addEvent(u)
	return nil
}

// sumOf returns the sums that have an hour.
func (r *received) sumOf(hour core.Date) *usageSums {
	day := hour.Day()
	if first := wholeDay(hour); r.from == 0 && (r.start == 0 || first < r.start) {
		r.sums.events += r.before.events // the day before the former start is whole
		for of, n := range r.before.of {
			r.sums.add(of, n)
		}
		r.before, r.start = usageSums{}, first
	}
	switch {
	case day >= r.to || day < r.start && r.from != 0:
		r.outside++
		return new(usageSums)
	case day < r.start:
		return &r.before
	}
	return &r.sums
}

// wholeDay returns the first day that begins at an hour or later.
func wholeDay(hour core.Date) core.Date {
	if day := hour.Day(); day.Start().Equal(hour.Start()) {
		return day
	}
	return hour.Day() + 1
}

// count returns the numbers of users and of keys with events.
func (r *received) count() (users, keys int) {
	for of := range maps.Keys(r.sums.of) {
		switch {
		case of.meter != core.MeterCount: // each event has this one
		case of.key != "":
			keys++
		default:
			users++
		}
	}
	return users, keys
}

// oneLine returns an error of the JSON package as one short line.
func oneLine(err error) error {
	text, _, _ := strings.Cut(err.Error(), "\n")
	return errors.New(printable(text))
}
