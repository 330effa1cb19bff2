package badgerstore

import (
	"fmt"
	"log/slog"
	"path/filepath"
	"time"

	"github.com/dgraph-io/badger/v4"

	"github.com/limitkeeper/limitkeeper/storage/badgerstore/internal/eventlog"
	"github.com/limitkeeper/limitkeeper/storage/badgerstore/internal/table"
)

// Repair sets the damaged part of the event log of a store aside, so that the store can be opened. It keeps the
// unbroken part of the log with the last checkpoint. It moves all other parts to files whose names end in .damaged,
// and returns these names. History before the kept part is lost. Counts and changes behind the kept part are lost,
// unless the tables of the database have them. New records get positions behind all positions used before. Repair
// calls confirm first, with one line for each part, and changes nothing when confirm returns false. Without damage
// Repair does not call confirm. Repair cannot mend a damaged database.
func Repair(dir string, confirm func(lines []string) bool) (names []string, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("repair the store in %s: %w", dir, err)
		}
	}()
	plan, next, err := planRepair(dir, confirm)
	if plan == nil {
		return nil, err
	}
	if err != nil {
		plan.Close()
		return nil, err
	}
	return plan.Apply(next)
}

// planRepair returns the plan of a repair, and the first position of new records after the repair. It prepares the
// database for that position and closes it. The plan is nil without damage, and when confirm has returned false.
func planRepair(dir string, confirm func(lines []string) bool) (_ *eventlog.Repair, next int64, err error) {
	db, err := table.Open(tableOptions(dir, slog.New(slog.DiscardHandler)))
	if err != nil {
		return nil, 0, err
	}
	defer func() { err = firstOf(err, db.Close()) }()
	var mark int64
	err = db.View(func(txn *badger.Txn) (err error) {
		mark, err = snapshot{txn}.number(at(kindCheckpoint))
		return err
	})
	if err != nil {
		return nil, 0, err
	}
	found := db.Found()
	o := eventlog.Options{Dir: filepath.Join(dir, eventLogDir), Known: max(mark, found.Log), Boot: eventlog.Boot()}
	verified, err := eventlog.Verify(o)
	if err != nil || len(verified.Damage) == 0 {
		return nil, 0, err
	}
	o.Known = mark
	plan, err := eventlog.PlanRepair(o)
	if err != nil {
		return nil, 0, err
	}
	if !confirm(repairLines(plan, mark)) {
		plan.Close()
		return nil, 0, nil
	}
	next, err = rewind(db, plan, found.Log)
	if err == nil {
		err = db.Checkpoint(table.Mark{Position: found.Position, Log: next, Time: found.Time})
	}
	return plan, next, err
}

// repairLines describes the kept part and each part that is set aside.
func repairLines(plan *eventlog.Repair, mark int64) (lines []string) {
	if plan.Empty {
		lines = append(lines, "The event log is kept from the last checkpoint on, and is empty: the history before is lost.")
	} else {
		lines = append(lines, "Kept: "+recordsOf(plan.Kept))
	}
	for _, p := range plan.Aside {
		what := "in the checkpoint, so counts are right; their history and request ids are lost"
		if p.From >= mark {
			what = "not in the checkpoint: their counts, and changes of users, keys and plans, are lost"
		}
		lines = append(lines, fmt.Sprintf("Set aside: %s; %s.", recordsOf(p), what))
	}
	return append(lines, "What lies between these parts cannot be read.")
}

// recordsOf describes a part of the event log: the number of its records, and its time if it begins and ends with
// events.
func recordsOf(p eventlog.Part) string {
	text := fmt.Sprintf("%d records", p.Records)
	first, err := decodeEvent(p.First, p.From)
	if err != nil || p.Records == 0 {
		return text
	}
	last, err := decodeEvent(p.Last, p.To)
	if err != nil {
		return text
	}
	return fmt.Sprintf("%s, from %s to %s", text, first.At.UTC().Format(time.RFC3339), last.At.UTC().Format(time.RFC3339))
}
