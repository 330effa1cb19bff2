package badgerstore

import (
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
)

// dirtyLogs returns how many bytes of the write-ahead logs in a directory this process
// has changed that are not on the disk.
func dirtyLogs(t *testing.T, dir string) (sum int) {
	t.Helper()
	for _, bytes := range dirtyByLog(t, dir) {
		sum += bytes
	}
	return sum
}

// dirtyByLog returns that for each log, by its path.
func dirtyByLog(t *testing.T, dir string) map[string]int {
	t.Helper()
	bytes := map[string]int{}
	maps, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		t.Fatal(err)
	}
	var log string
	for line := range strings.Lines(string(maps)) {
		fields := strings.Fields(line)
		switch {
		case strings.Contains(fields[0], "-"): // a mapping begins: addresses, …, path
			name := fields[len(fields)-1]
			if log = ""; filepath.Dir(name) == dir && filepath.Ext(name) == logSuffix {
				log = name
			}
		case log != "" && strings.HasSuffix(fields[0], "_Dirty:"):
			kib, err := strconv.Atoi(fields[1])
			if err != nil {
				t.Fatalf("smaps: %q", line)
			}
			bytes[log] += kib << 10
		}
	}
	return bytes
}

// TestPower: with Power every write is on the disk when it is answered, also when it is
// the first one in a new log.
func TestPower(t *testing.T) {
	dir := t.TempDir()
	s := openIn(t, dir, Options{Durability: Power})
	withAccount(t, s)
	known(t, s, "key")
	metadata := `{"a":"` + strings.Repeat("x", 4000) + `"}`
	first, written := highestLog(t, s), 0
	for i := 1; highestLog(t, s) < first+2; i++ {
		update(t, s, func(tx core.Tx) error {
			for range 50 {
				written++
				if err := tx.PutUser(&core.User{AccountID: acct, Name: "user", Metadata: []byte(metadata)}); err != nil {
					return err
				}
			}
			return nil
		})
		if dirty := dirtyLogs(t, dir); dirty > 0 {
			t.Fatalf("after update %d: got %d bytes that are not on the disk, want 0", i, dirty)
		}
		consume(t, s, request("key", 1, 1<<20, noon))
		if dirty := dirtyLogs(t, dir); dirty > 0 {
			t.Fatalf("after request %d: got %d bytes that are not on the disk, want 0", i, dirty)
		}
	}
}

func highestLog(t *testing.T, s *Store) int {
	t.Helper()
	numbers, err := s.logs.numbers()
	if err != nil || len(numbers) == 0 {
		t.Fatalf("numbers of logs: got %v, %v", numbers, err)
	}
	return numbers[len(numbers)-1]
}

// TestProcess: with Process everything that was answered is on the disk soon after.
func TestProcess(t *testing.T) {
	dir := t.TempDir()
	s := openIn(t, dir, Options{})
	known(t, s, "key")
	waitUntil(t, "nothing is left from opening", func() bool { return dirtyLogs(t, dir) == 0 })
	consume(t, s, request("key", 1, 1, noon))
	if s.unsynced.Load() && dirtyLogs(t, dir) == 0 {
		t.Error("right after a request: got no bytes that are not on the disk: the test sees nothing")
	}
	waitUntil(t, "the request is on the disk", func() bool { return dirtyLogs(t, dir) == 0 })
}

// TestProcessKeepsOrder: what is in a log is on the disk before anything is committed
// after what is in the next one: a power cut takes the end and nothing from the middle.
func TestProcessKeepsOrder(t *testing.T) {
	dir := t.TempDir()
	s, err := open(dir, Options{}) // nothing is synced every second
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	defer func() { _ = s.Close() }()
	withAccount(t, s)
	first := highestLog(t, s)
	for i := int64(1); highestLog(t, s) < first+2; i++ {
		update(t, s, withKeys(i, 100))
		newest := s.logs.path(highestLog(t, s))
		for log, bytes := range dirtyByLog(t, dir) {
			if log != newest && bytes > 0 {
				t.Fatalf("update %d: got %d bytes of %s that are not on the disk beside %s, want 0", i, bytes, log, newest)
			}
		}
	}
}

// TestSetDurability: a change to Power brings what was answered before to the disk, and
// is in force from then on; so is the change back.
func TestSetDurability(t *testing.T) {
	dir := t.TempDir()
	s := openIn(t, dir, Options{})
	known(t, s, "key")
	for i := range 20 {
		consume(t, s, request("key", 1, 1<<20, noon))
		s.SetDurability(Power)
		if dirty := dirtyLogs(t, dir); dirty > 0 {
			t.Fatalf("after SetDurability(Power): got %d bytes that are not on the disk, want 0", dirty)
		}
		consume(t, s, request("key", 1, 1<<20, noon))
		if dirty := dirtyLogs(t, dir); dirty > 0 {
			t.Fatalf("request %d with Power: got %d bytes that are not on the disk, want 0", i, dirty)
		}
		s.SetDurability(Process)
	}
	s.committing.Lock()
	defer s.committing.Unlock()
	if s.durability != Process {
		t.Errorf("durability: got %v, want %v", s.durability, Process)
	}
}

// TestSyncFails: when the disk does not take what was committed, the write is
// answered with an error, and so is every later one: a second try might succeed without
// the bytes of the first.
func TestSyncFails(t *testing.T) {
	dir := t.TempDir()
	s := mustOpen(t, dir, Options{Durability: Power, Logger: quiet.Logger})
	withAccount(t, s)
	known(t, s, "key")
	broken, err := os.Open("/dev/full") // a device that cannot be synced
	if err != nil {
		t.Fatal(err)
	}
	log := s.logs.newest
	s.logs.newest = broken
	for range 2 {
		wantUnavailable(t, s)
		s.logs.newest = log
	}
	if _, err := s.AccountByName(t.Context(), acct); err != nil {
		t.Errorf("AccountByName: %v", err)
	}
	if err := s.Close(); err == nil {
		t.Error("Close: got no error, want what the disk said")
	}
	s = openIn(t, dir, Options{Durability: Power})
	if !consume(t, s, request("key", 2, 2, noon)) {
		t.Error("Consume after opening the store again: got denied, want allowed")
	}
}

// wantUnavailable fails unless the store takes no write.
func wantUnavailable(t *testing.T, s *Store) {
	t.Helper()
	if err := s.Update(t.Context(), acct, withKeys(1, 1)); !isUnavailable(err) {
		t.Errorf("Update: got error %v, want %v", err, core.ErrUnavailable)
	}
	if _, err := s.Consume(t.Context(), request("key", 1, 1, noon)); !isUnavailable(err) {
		t.Errorf("Consume: got error %v, want %v", err, core.ErrUnavailable)
	}
}

// TestFull: while the disk is full nothing is written and everything can be read.
func TestFull(t *testing.T) {
	s, err := open(t.TempDir(), quiet)
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	defer func() { _ = s.Close() }()
	withAccount(t, s)
	known(t, s, "key")
	for _, isFull := range []bool{true, false} {
		full(s, isFull)
		_, consumeErr := s.Consume(t.Context(), request("key", 1, 10, time.Now()))
		updateErr := s.Update(t.Context(), acct, withKeys(1, 1))
		createErr := s.CreateOwnerKey(t.Context(), &core.OwnerKey{AccountID: acct, ID: "okey2"})
		for what, err := range map[string]error{"Consume": consumeErr, "Update": updateErr, "CreateOwnerKey": createErr} {
			if isUnavailable(err) != isFull {
				t.Errorf("%s when the disk is full: %v: got error %v", what, isFull, err)
			}
		}
		if _, _, err := s.Users(t.Context(), acct, core.UserFilter{}, core.Page{Number: 1, Size: 1}); err != nil {
			t.Errorf("Users when the disk is full: %v: got error %v", isFull, err)
		}
	}
}

// TestSyncWaits: whoever wants what was committed on the disk waits for it when somebody
// else is bringing it there, and is not told that all is done.
func TestSyncWaits(t *testing.T) {
	syncing, release := make(chan struct{}), make(chan struct{})
	var slow, synced atomic.Bool
	s := openAlone(t, t.TempDir(), Options{syncLog: func(f *os.File) error {
		if slow.CompareAndSwap(true, false) {
			close(syncing)
			<-release
			synced.Store(true)
		}
		return f.Sync()
	}})
	known(t, s, "key")
	slow.Store(true)
	var group sync.WaitGroup
	group.Go(func() {
		if err := s.sync(); err != nil {
			t.Errorf("sync: %v", err)
		}
	})
	<-syncing
	for what, fn := range map[string]func(){
		"sync": func() { _ = s.sync() }, "SetDurability": func() { s.SetDurability(Power) },
	} {
		group.Go(func() {
			fn()
			if !synced.Load() {
				t.Errorf("%s has returned before the disk has what was committed", what)
			}
		})
	}
	for range 100 { // time for those who do not wait
		runtime.Gosched()
	}
	close(release)
	group.Wait()
}
