package table

import (
	"bytes"
	"fmt"
	"runtime"
	"sync"

	"github.com/dgraph-io/badger/v4/pb"
	"google.golang.org/protobuf/runtime/protoiface"
)

// Badger 4.9.6 drops the error when a compaction cannot create a table (no inode, no file descriptor,
// no mapping, EIO), goes on without the table, and deletes the merged tables: all entries of the missing
// table are lost. So a compaction may change the manifest only when it has created as many tables as
// it has built:
//
//   - A goroutine of the compaction logs each table before it is created: badgerLog.Debugf calls noteBuilt.
//   - The goroutine that has started it encodes the change of the manifest. The encoder calls checkCreated
//     first. After its error Badger removes the new tables, keeps the merged ones, and tries again.
//
// What joins the two is the number of the parent, which the trace of a goroutine ends with. TestCompactionWithoutTable
// fails when another version of Badger, of protobuf or of Go does not work like this.
func init() {
	methods := new(pb.ManifestChangeSet).ProtoReflect().ProtoMethods()
	marshal := methods.Marshal
	methods.Marshal = func(in protoiface.MarshalInput) (protoiface.MarshalOutput, error) {
		if err := checkCreated(in.Message.Interface().(*pb.ManifestChangeSet)); err != nil {
			return protoiface.MarshalOutput{}, err
		}
		return marshal(in)
	}
}

// checkCreated returns an error when a change of the manifest is that of a compaction which has not created
// all of its tables.
func checkCreated(set *pb.ManifestChangeSet) error {
	created, deleted := 0, 0
	for _, c := range set.Changes {
		if c.Op == pb.ManifestChange_CREATE {
			created++
		} else {
			deleted++
		}
	}
	if deleted == 0 { // a memtable was flushed, or the manifest is rewritten
		return nil
	}
	if n := takeBuilt(); created < n { // another database of the process, with a logger of its own, has built none
		return fmt.Errorf("a compaction has created %d of %d tables: no inode, no file descriptor, or an I/O error", created, n)
	}
	return nil
}

// built counts the tables of the compactions that are running, by the goroutine of the compaction.
var built = struct {
	sync.Mutex
	tables map[string]int
}{tables: map[string]int{}}

// noteBuilt counts a table for the compaction whose goroutine has started this one.
func noteBuilt() {
	stack := make([]byte, 16<<10)
	stack = stack[:runtime.Stack(stack, false)]
	_, parent, _ := bytes.Cut(stack, []byte(" in goroutine "))
	built.Lock()
	defer built.Unlock()
	built.tables[number(parent)]++
}

// takeBuilt returns how many tables the compaction of this goroutine has built, and forgets them.
func takeBuilt() int {
	stack := make([]byte, 64)
	stack = stack[:runtime.Stack(stack, false)]
	id := number(bytes.TrimPrefix(stack, []byte("goroutine ")))
	built.Lock()
	defer built.Unlock()
	defer delete(built.tables, id)
	return built.tables[id]
}

// number returns the digits that a text begins with.
func number(text []byte) string {
	digits := 0
	for digits < len(text) && '0' <= text[digits] && text[digits] <= '9' {
		digits++
	}
	return string(text[:digits])
}
