package table

import (
	"bytes"
	"fmt"
	"runtime"
	"sync"

	"github.com/dgraph-io/badger/v4/pb"
	"google.golang.org/protobuf/runtime/protoiface"
)

// When a compaction cannot create a table (no inode, no file descriptor, no mapping, EIO), Badger 4.9.6 drops the
// error and deletes the merged tables: all entries of the missing table are lost. So this file lets a compaction
// change the manifest only when it has created as many tables as it has built:
//
//   - Child goroutines of the compaction log each table before they create it: badgerLog.Debugf calls countBuilt.
//   - The goroutine of the compaction encodes the change of the manifest. The encoder calls checkCreated first. After
//     an error Badger removes the new tables, keeps the merged tables, and tries again.
//
// The stack trace of a child goroutine ends with the number of its parent, so both use the number of the goroutine of
// the compaction as the key. TestCompactionWithoutTable fails when another version of Badger, of protobuf or of Go
// works differently.
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

// checkCreated returns an error when a change of the manifest comes from a compaction that has not created all of
// its tables.
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
		return fmt.Errorf("a compaction created %d of %d tables: look for a lack of inodes or file descriptors, and for I/O errors", created, n)
	}
	return nil
}

// built has the number of tables that each running compaction has built, by the number of its goroutine.
var built = struct {
	sync.Mutex
	tables map[string]int
}{tables: map[string]int{}}

// countBuilt counts a table for the compaction whose goroutine has started the current goroutine.
func countBuilt() {
	stack := make([]byte, 16<<10)
	stack = stack[:runtime.Stack(stack, false)]
	_, parent, _ := bytes.Cut(stack, []byte(" in goroutine "))
	built.Lock()
	defer built.Unlock()
	built.tables[leadingDigits(parent)]++
}

// takeBuilt returns the number of tables that the compaction of the current goroutine has built, and resets it to 0.
func takeBuilt() int {
	stack := make([]byte, 64)
	stack = stack[:runtime.Stack(stack, false)]
	id := leadingDigits(bytes.TrimPrefix(stack, []byte("goroutine ")))
	built.Lock()
	defer built.Unlock()
	defer delete(built.tables, id)
	return built.tables[id]
}

// leadingDigits returns the digits at the start of a text.
func leadingDigits(text []byte) string {
	digits := 0
	for digits < len(text) && '0' <= text[digits] && text[digits] <= '9' {
		digits++
	}
	return string(text[:digits])
}
