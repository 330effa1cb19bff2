package record

import (
	"encoding/json"
	"slices"

	"github.com/limitkeeper/limitkeeper/core"
)

// The days of the deleted users of an account are in chunks of 32 days, and their hours in chunks of 32 hours, one record each, so that the deletion of a
// user writes few records.

// DeletedChunk returns the number of the chunk that has a day or hour.
func DeletedChunk(d core.Date) int64 { return int64(d) >> 5 }

// ChunkEnd returns the last day or hour of a chunk.
func ChunkEnd(chunk int64) core.Date { return core.Date(chunk<<5 | 31) }

// ChunkNumbers returns the numbers of the chunks that have the days of a list.
func ChunkNumbers(days []core.CounterDay) (list []int64) {
	for _, d := range days {
		if n := DeletedChunk(d.Date); !slices.Contains(list, n) {
			list = append(list, n)
		}
	}
	return list
}

// DecodeDeleted returns the days in the record of a chunk. An empty record has no days.
func DecodeDeleted(b []byte) (days []core.CounterDay, err error) {
	if len(b) > 0 && json.Unmarshal(b, &days) != nil {
		return nil, ErrDamaged
	}
	return days, nil
}

// AddDeleted adds the days of a deleted user to the records of its account. read returns the record of a chunk, nil for a missing record.
func AddDeleted(days []core.CounterDay, read func(chunk int64) ([]byte, error), write func(chunk int64, record []byte)) error {
	chunks := map[int64]Days{}
	for _, d := range days {
		n := DeletedChunk(d.Date)
		if chunks[n] == nil {
			b, err := read(n)
			if err != nil {
				return err
			}
			list, err := DecodeDeleted(b)
			if err != nil {
				return err
			}
			chunks[n] = Days{}
			for i := range list {
				chunks[n][list[i].Date] = &list[i]
			}
		}
		chunks[n].addWhole(&d)
	}
	for n, days := range chunks {
		b, err := json.Marshal(days.List())
		if err != nil {
			return err
		}
		write(n, b)
	}
	return nil
}

// AddWhole adds the whole traffic of the days of a list. It leaves out the shared traffic.
func (d Days) AddWhole(days []core.CounterDay) {
	for i := range days {
		d.addWhole(&days[i])
	}
}

func (d Days) addWhole(day *core.CounterDay) {
	sum := d.day(day.Date)
	sum.Traffic = sum.Plus(day.Traffic)
	for _, m := range day.Meters {
		for _, n := range []int{DayAllowed, DayDenied, DayAdjusted} {
			if by := *MeterNumber(&m, n); by != 0 {
				to := d.MeterNumber(day.Date, m.Meter, n)
				*to = core.AddSigned(*to, by)
			}
		}
	}
}

// ChunksOf returns the records of sorted days, by the numbers of the chunks.
func ChunksOf(days []core.CounterDay) (map[int64][]byte, error) {
	chunks := map[int64][]byte{}
	err := AddDeleted(days, func(int64) ([]byte, error) { return nil, nil }, func(n int64, b []byte) { chunks[n] = b })
	return chunks, err
}

// WithoutShared returns a copy of days without shared traffic.
func WithoutShared(days []core.CounterDay) []core.CounterDay {
	sum := Days{}
	sum.AddWhole(days)
	return sum.List()
}
