package badgerstore

import (
	"cmp"
	"fmt"
	"log/slog"
	"path/filepath"
	"time"

	"github.com/dgraph-io/badger/v4"

	"github.com/limitkeeper/limitkeeper/storage/badgerstore/internal/eventlog"
	"github.com/limitkeeper/limitkeeper/storage/badgerstore/internal/table"
)

// Repair sets the damaged part of the event log of a store aside, so that the store can be opened. The
// part of the log that has the last checkpoint stays. Everything before it and behind it goes to files
// whose names end in .damaged, which Repair returns: history before it is lost, and counts and changes
// behind it. confirm is called first with what that is, one line each; when it returns false nothing
// is changed. Without damage it is not called. A database that is damaged cannot be repaired.
func Repair(dir string, confirm func(lines []string) bool) (names []string, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("repair the store in %s: %w", dir, err)
		}
	}()
	db, err := table.Open(tableOptions(dir, slog.New(slog.DiscardHandler)))
	if err != nil {
		return nil, err
	}
	defer func() { err = cmp.Or(err, db.Close()) }()
	var mark int64
	err = db.View(func(txn *badger.Txn) (err error) {
		mark, err = snapshot{txn}.number(at(kindFolded))
		return err
	})
	if err != nil {
		return nil, err
	}
	found := db.Found()
	o := eventlog.Options{Dir: filepath.Join(dir, eventLogDir), Known: max(mark, found.Log), Boot: eventlog.Boot()}
	verified, err := eventlog.Verify(o)
	if err != nil || len(verified.Damage) == 0 {
		return nil, err
	}
	o.Known = mark
	plan, err := eventlog.PlanRepair(o)
	if err != nil {
		return nil, err
	}
	if !confirm(repairLines(plan, mark)) {
		plan.Close()
		return nil, nil
	}
	if names, err = plan.Apply(); err != nil {
		return names, err
	}
	return names, db.Checkpoint(table.Mark{Position: found.Position, Log: max(mark, plan.Kept.To), Time: found.Time})
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

// recordsOf says how many records are in a part of the event log, and of what time if it begins and
// ends with events.
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
