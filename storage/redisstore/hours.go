package redisstore

import (
	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/record"
)

// The format of hours: see scripts/hours.lua.
const (
	hourDays   = 8  // days in the list of hours: core.HoursKept hours can touch 8 days. An import may add more
	namedMeter = 16 // added to the size in an entry: the name of the meter follows
	noHour     = 31 // the hour of imported traffic whose hour is unknown
)

// dayNumber identifies a number of a day.
type dayNumber struct {
	date   core.Date
	meter  string
	number int
}

// latestHours maps each number of a day to its latest hour and its value on that day. A nil map stays empty.
type latestHours map[dayNumber]struct {
	hour  int
	value int64
}

func (l latestHours) set(of dayNumber, hour int, value int64) {
	if l != nil {
		l[of] = struct {
			hour  int
			value int64
		}{hour, value}
	}
}

// addTo adds the hours of a counter to days: the hours in the elements of the list, and the latest hours. newest is the value of hoursField.
func (l latestHours) addTo(days record.Days, elements []string, newest string) error {
	unknown := core.Date(-1) // the hours of this day and of all earlier days are unknown
	if newest != "" {
		unknown = core.Date(record.NewReader([]byte(newest)).Uint(3))
	}
	values := map[dayNumber]int64{}
	add := func(of dayNumber, hour int, value int64) {
		if by := value - values[of]; by != 0 && hour != noHour {
			*days.MeterNumber(hourOfDate(of.date, hour), of.meter, of.number) += by
		}
		values[of] = value
	}
	for _, b := range elements {
		r := record.NewReader([]byte(b))
		date := core.Date(r.Uint(3))
		for !r.Ended() {
			code, size, meter := r.Uint(1), r.Uint(1), core.MeterRequests
			if size >= namedMeter {
				meter = r.Bytes(int(r.Uint(1)))
			}
			size %= namedMeter
			shift := 64 - 8*size
			if value := int64(r.Uint(int(size))<<shift) >> shift; !r.Failed() {
				add(dayNumber{date, meter, int(code % 8)}, int(code/8), value)
			}
		}
		if r.Failed() {
			return record.ErrDamaged
		}
		unknown = date - hourDays // the last element has the newest date
	}
	for of, x := range l {
		if of.date > unknown {
			add(of, x.hour, x.value)
		}
	}
	return nil
}

// hourOfDate returns an hour of a day, from 0 to 23.
func hourOfDate(date core.Date, hour int) core.Date {
	return core.HourOf(date.Start()) + core.Date(hour)
}

// encodeHours returns the stored form of the hours in a sorted list of days and hours, "" without hours: the elements for set_days.lua, each after its
// size.
func encodeHours(list []core.CounterDay) string {
	if len(list) == 0 || !list[len(list)-1].Date.IsHour() {
		return ""
	}
	var b []byte
	last := core.Date(-1)
	for _, d := range list {
		date := d.Date.Day()
		if !d.Date.IsHour() || date <= last {
			continue
		}
		if of := encodeHoursOf(date, list); len(of) > 0 {
			b = append(record.AppendUint(record.AppendUint(b, 3, uint64(len(of)+3)), 3, uint64(date)), of...)
		}
		last = date
	}
	return string(b)
}

// encodeHoursOf returns the entries of the hours of a date. Traffic of the day that is in no hour gets entries with noHour.
func encodeHoursOf(date core.Date, list []core.CounterDay) (b []byte) {
	values, ofDay := map[dayNumber]int64{}, map[dayNumber]int64{}
	var all []dayNumber
	for i := range list {
		d := &list[i]
		if d.Date.Day() != date {
			continue
		}
		if !d.Date.IsHour() {
			for n := range record.DayNumbers {
				value := min(*record.DayNumber(d, n), maxUsed)
				ofDay[dayNumber{date, core.MeterRequests, n}] = value
			}
		}
		for j := range d.Meters {
			for n := range record.DayMeterNumbers {
				value := *record.MeterNumber(&d.Meters[j], n)
				of := dayNumber{date, d.Meters[j].Meter, n}
				switch {
				case value == 0:
				case d.Date.IsHour():
					if _, known := values[of]; !known {
						all = append(all, of)
					}
					values[of] += value
					b = appendHour(b, of, int(d.Date-hourOfDate(date, 0)), values[of])
				default:
					ofDay[of] = min(max(-maxUsed, value), maxUsed)
				}
			}
		}
	}
	for _, of := range all {
		if values[of] != ofDay[of] {
			b = appendHour(b, of, noHour, ofDay[of])
		}
	}
	return b
}

// appendHour appends an entry: the value of a number of a day at the end of an hour.
func appendHour(b []byte, of dayNumber, hour int, value int64) []byte {
	size := 7
	value = min(max(-maxUsed, value), maxUsed)
	for n := 4; n > 0; n-- {
		if value == value<<(64-8*n)>>(64-8*n) {
			size = n
		}
	}
	b = append(b, byte(8*hour+of.number))
	if of.meter == core.MeterRequests {
		b = append(b, byte(size))
	} else {
		b = appendMeter(append(b, byte(size+namedMeter)), of.meter)
	}
	return record.AppendUint(b, size, uint64(value))
}
