package badgerstore

import (
	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/record"
)

// dayNumber is one number of one day, or of one hour.
type dayNumber struct {
	date   core.Date // the day or the hour
	number dayKind
	used   int64
}

// dayKind identifies a number of a day or hour. The lowest 6 bits are the index in package record, the next two bits are dayHour and dayChange, and the
// higher bits are the record.MeterIndex of the meter. The higher bits are 0 for the first record.DayNumbers indexes, which count the cost of requests.
type dayKind uint32

const (
	dayHour = 0x40 // marks a number of an hour

	// dayChange marks a difference, which may be negative: the archive adds the difference to its number. A number without the mark replaces the
	// number in the archive.
	dayChange = 0x80

	dayMarks = dayHour | dayChange
)

// kindOfMeter returns the kind of a number of a meter on a day. number is an index in package record.
func kindOfMeter(meter string, number int) dayKind {
	return dayKind(record.MeterIndex(meter)<<8 | uint32(number))
}

// kindOn returns the kind of a number in the Meters of a core.CounterDay, which is a day or an hour.
func kindOn(date core.Date, meter string, number int) dayKind {
	if date.IsHour() && meter == core.MeterRequests && number < record.DayNumbers {
		return dayHour | dayKind(number)
	}
	return hourMark(date) | kindOfMeter(meter, number)
}

// hourMark returns the mark of all numbers of an hour, 0 for a day.
func hourMark(date core.Date) dayKind {
	if date.IsHour() {
		return dayHour
	}
	return 0
}

// meter returns the name of the meter.
func (k dayKind) meter() string {
	if k.fixed() {
		return core.MeterRequests
	}
	return record.MeterName(uint32(k >> 8))
}

// index returns the index in package record.
func (k dayKind) index() int   { return int(k & 0xff &^ dayMarks) }
func (k dayKind) change() bool { return k&dayChange != 0 }
func (k dayKind) hour() bool   { return k&dayHour != 0 }

// fixed reports whether k counts the cost of requests. Such a number has a fixed place in records.
func (k dayKind) fixed() bool { return k>>8 == 0 }

// ofDay reports whether k counts the cost of requests on a day, which is a field of core.CounterDay. All other numbers are in the Meters of the
// core.CounterDay, and may be negative.
func (k dayKind) ofDay() bool { return k.fixed() && !k.hour() }

// same reports whether other is the same number of the same day.
func (d dayNumber) same(other dayNumber) bool {
	return d.date == other.date && d.number == other.number
}

// concerns reports whether other has the same number of the same day. Each of the two may be the number or a change of the number.
func (d dayNumber) concerns(other dayNumber) bool {
	return d.date == other.date && d.number&^dayChange == other.number&^dayChange
}

// bound bounds a number after a change. The cost of requests on a day is from 0 to core.MaxLimit, any other number from -core.MaxLimit to core.MaxLimit.
func (k dayKind) bound(used int64) int64 {
	if k.ofDay() {
		return min(max(0, used), core.MaxLimit)
	}
	return core.AddSigned(used, 0)
}
