package badgerstore

import (
	"bufio"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/badgerstore/internal/diskspace"
)

// mounts is an environment variable of a test process that may mount file systems.
const mounts = "BADGERSTORE_TEST_MOUNTS"

// mayMount runs the test in a child process that may mount file systems without root, and reports whether this is the
// child. A SIGBUS ends only the child.
func mayMount(t *testing.T) bool {
	t.Helper()
	if os.Getenv(mounts) != "" {
		return true
	}
	cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v", "-test.count=1")
	cmd.Env = append(os.Environ(), mounts+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{HostID: os.Geteuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{HostID: os.Getegid(), Size: 1}},
	}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%.4000s", err, out)
	}
	for line := range strings.Lines(string(out)) {
		if strings.Contains(line, "_test.go:") {
			t.Log(strings.TrimSpace(line))
		}
	}
	return false
}

// onTmpfs returns the directory of a store on a tmpfs of size MiB.
func onTmpfs(t *testing.T, size int) (dir string) {
	t.Helper()
	disk := filepath.Join(t.TempDir(), "disk")
	if err := os.Mkdir(disk, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount("tmpfs", disk, "tmpfs", 0, fmt.Sprintf("size=%dm", size)); err != nil {
		t.Fatalf("mount: %v", err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(disk, syscall.MNT_DETACH) })
	return filepath.Join(disk, "store")
}

// otherProgram is a file of another program on the disk of a store.
type otherProgram struct{ *os.File }

// fillDisk fills the disk of a store with another file, until at most some bytes are free. empty deletes that file.
func fillDisk(t *testing.T, dir string, left uint64) (empty func()) {
	t.Helper()
	f, err := os.Create(filepath.Join(filepath.Dir(dir), "others"))
	if err == nil {
		err = otherProgram{f}.fill(left)
	}
	if err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := errors.Join(f.Close(), os.Remove(f.Name())); err != nil {
			t.Error(err)
		}
	}
}

// fill makes the file larger until at most some bytes of the disk are free.
func (f otherProgram) fill(left uint64) error {
	for {
		free, _, err := diskspace.Space(filepath.Dir(f.Name()))
		if err == nil && free > left {
			_, err = f.Write(make([]byte, min(1<<20, free-left)))
		}
		if errors.Is(err, syscall.ENOSPC) || err == nil && free <= left {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// keepFull is fillDisk with a program that also takes what the store frees afterwards.
func keepFull(t *testing.T, dir string, left uint64) (empty func()) {
	t.Helper()
	remove := fillDisk(t, dir, left)
	f, err := os.OpenFile(filepath.Join(filepath.Dir(dir), "others"), os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		t.Fatal(err)
	}
	stop := keepDoing(func() { _ = otherProgram{f}.fill(left) })
	return func() {
		stop()
		if err := f.Close(); err != nil {
			t.Error(err)
		}
		remove()
	}
}

// keepDoing calls fn every millisecond, until stop is called. stop waits for the last call to end.
func keepDoing(fn func()) (stop func()) {
	stopping, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case <-stopping:
				return
			case <-time.After(time.Millisecond):
				fn()
			}
		}
	}()
	return func() {
		close(stopping)
		<-ended
	}
}

// The log lines when the disk gets full, and when it has room again. loadCallers is the number of counting goroutines of
// a load.
const (
	getsFull    = "the disk is full: requests"
	hasRoom     = "the disk has free space again"
	loadCallers = 8
)

// load counts requests, and creates and changes keys, until end is called.
type load struct {
	s                       *Store
	sent, answered, refused [loadCallers]atomic.Int64
	failed                  atomic.Pointer[error] // an error other than unavailable
	stop                    chan struct{}
	group                   sync.WaitGroup
}

func startLoad(t *testing.T, s *Store) *load {
	known(t, s, numbered("key", loadCallers)...)
	l := &load{s: s, stop: make(chan struct{})}
	for i := range loadCallers {
		l.group.Go(func() { l.until(func() error { return l.count(t, i) }) })
	}
	for i := range 2 {
		n := 0
		l.group.Go(func() {
			l.until(func() error {
				n++
				return s.Update(t.Context(), acct, func(tx core.Tx) error {
					k := newKey(int64(i+1), n%500)
					k.Metadata = []byte(`{"a":"` + strings.Repeat("m", 4000) + `"}`)
					return tx.PutKey(k)
				})
			})
		})
	}
	return l
}

func (l *load) until(fn func() error) {
	for {
		select {
		case <-l.stop:
			return
		default:
		}
		err := fn()
		if err != nil && !isUnavailable(err) {
			l.failed.Store(&err)
		}
		if err != nil {
			runtime.Gosched() // a client would wait before it retries
		}
	}
}

func (l *load) count(t *testing.T, i int) error {
	l.sent[i].Add(1)
	c := request(fmt.Sprint("key", i), 1, endless, noon)
	c.Entry.Endpoint = "/" + strings.Repeat("e", 200)
	_, err := l.s.Consume(t.Context(), c)
	if err == nil {
		l.answered[i].Add(1)
	} else {
		l.refused[i].Add(1)
	}
	return err
}

func sum(list *[loadCallers]atomic.Int64) (n int64) {
	for i := range list {
		n += list[i].Load()
	}
	return n
}

func (l *load) end(t *testing.T) {
	t.Helper()
	close(l.stop)
	l.group.Wait()
	if err := l.failed.Load(); err != nil {
		t.Errorf("got error %v, want none or unavailable", *err)
	}
}

// wantCounted fails unless every answered request is counted, and no request that was not sent.
func (l *load) wantCounted(t *testing.T, s *Store) {
	t.Helper()
	counted := int64(0)
	for i := range loadCallers {
		of := ofKey(fmt.Sprint("key", i))
		used := counterOf(t, s, of).Requests[core.Month]
		if counted += used; used < l.answered[i].Load() || used > l.sent[i].Load() {
			t.Errorf("%v: got %d used, want at least %d answered and at most %d sent", of, used, l.answered[i].Load(), l.sent[i].Load())
		}
	}
	t.Logf("%d sent, %d answered, %d refused, %d counted", sum(&l.sent), sum(&l.answered), sum(&l.refused), counted)
}

// TestDiskBelowMinFree: another program takes a part of min_free while the store counts, creates keys and compacts its
// tables. A failure means that the process dies, that it needs a restart, or that a key cannot be disabled meanwhile.
func TestDiskBelowMinFree(t *testing.T) {
	if !mayMount(t) {
		return
	}
	for _, size := range []int{64, 300} {
		t.Run(fmt.Sprint(size, " MiB"), func(t *testing.T) { belowMinFree(t, size) })
	}
}

func belowMinFree(t *testing.T, size int) {
	var logged logLines
	dir := onTmpfs(t, size)
	o := Options{Logger: logged.logger(), segmentSize: 1 << 20, MaxHistory: 8 << 20}
	s := mustOpen(t, dir, o)
	l := startLoad(t, s)
	const rounds = 2
	for round := 1; round <= rounds; round++ {
		before := sum(&l.answered)
		waitUntil(t, "requests are counted", func() bool { return sum(&l.answered) > before+5000 })
		empty := keepFull(t, dir, MinMinFree-1)
		refused := sum(&l.refused)
		waitUntil(t, "requests are refused", func() bool { return sum(&l.refused) > refused+1000 })
		err := s.Update(t.Context(), acct, func(tx core.Tx) error {
			k, err := tx.Key("key0")
			if err == nil {
				k.Status = core.KeyInactive
				err = tx.PutKey(k)
			}
			return err
		})
		if err != nil {
			t.Errorf("a key was not disabled: %v", err)
		}
		waitUntil(t, "the store is not healthy", func() bool { // it may have freed space for a moment
			err := s.Health(t.Context())
			return errors.Is(err, diskspace.ErrFull) && core.ErrorCode(err) == core.CodeUnavailable
		})
		empty()
		waitUntil(t, "there is room", func() bool { return s.Health(t.Context()) == nil })
	}
	l.end(t)
	full, room := logged.lines(getsFull), logged.lines(`level=WARN msg="`+hasRoom)
	if full < rounds || room != full || logged.lines("level=ERROR") != full || logged.lines("level=INFO") != 0 {
		t.Errorf("logged:\n%.3000s\nwant at least %d lines that the disk is full, and as many that it has room", logged.text.String(), rounds)
	}
	if err := s.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
	l.wantCounted(t, openAlone(t, dir, o))
}

// TestDiskFilledSlowly: the store fills its disk. It removes the oldest history, and refuses requests only when no history
// can be removed. A failure means that a busy service stops, or that its process dies.
func TestDiskFilledSlowly(t *testing.T) {
	if !mayMount(t) {
		return
	}
	for _, test := range []struct {
		size, segment, room int // in MiB; min_free is 32 MiB of the room
		refused             bool
	}{{64, 64, 58, true}, {300, 2, 72, false}} {
		t.Run(fmt.Sprint(test.size, " MiB"), func(t *testing.T) {
			var logged logLines
			dir := onTmpfs(t, test.size)
			o := Options{Logger: logged.logger(), segmentSize: int64(test.segment) << 20, MaxHistory: 1 << 40}
			s := mustOpen(t, dir, o)
			others, err := os.Create(filepath.Join(filepath.Dir(dir), "others")) // takes most of a large disk
			if err = firstOf(err, allocate(int(others.Fd()), int64(test.size-test.room)<<20), others.Close()); err != nil {
				t.Fatal(err)
			}
			l := startLoad(t, s)
			if test.refused {
				waitUntil(t, "requests are refused", func() bool { return sum(&l.refused) > 1000 })
			} else {
				waitUntil(t, "history is removed", func() bool {
					all := s.events.Segments()
					return len(all) > 0 && all[0].Base > 4<<20
				})
			}
			before := sum(&l.answered)
			if !test.refused {
				waitUntil(t, "requests are counted", func() bool { return sum(&l.answered) > before+1000 })
			}
			l.end(t)
			full, room := logged.lines(getsFull), logged.lines(hasRoom)
			if test.refused && full != 1 || logged.lines("level=ERROR") != full || full > room+1 || room > full {
				t.Errorf("logged:\n%.3000s\nwant one line for each change", logged.text.String())
			}
			if err := s.Close(); err != nil {
				t.Errorf("Close: %v", err)
			}
			l.wantCounted(t, openAlone(t, dir, o))
		})
	}
}

// TestStartOnFullDisk: Open of a store on a full disk returns one line. With less than min_free, the store opens and
// answers reads, and counts when the disk has room. A failure means that a start on a full disk dies, or needs all of
// min_free.
func TestStartOnFullDisk(t *testing.T) {
	if !mayMount(t) {
		return
	}
	var logged logLines
	o := Options{Logger: logged.logger()}
	dir := onTmpfs(t, 128)
	s := mustOpen(t, dir, o)
	known(t, s, "key")
	consume(t, s, request("key", 1, endless, noon))
	abandon(t, s)
	empty := fillDisk(t, dir, 0)
	_, err := Open(dir, o)
	wantOneLine(t, err, dir)
	if !errors.Is(err, diskspace.ErrFull) {
		t.Errorf("Open: got error %v, want %v", err, diskspace.ErrFull)
	}
	empty()
	empty = fillDisk(t, dir, MinMinFree-1)
	s = mustOpen(t, dir, o)
	if _, err := s.Consume(t.Context(), request("key", 1, endless, noon)); !errors.Is(err, diskspace.ErrFull) {
		t.Errorf("Consume: got error %v, want %v", err, diskspace.ErrFull)
	}
	wantUsed(t, s, ofKey("key"), 1)
	empty()
	waitUntil(t, "there is room", func() bool { return logged.lines(hasRoom) == 1 })
	consume(t, s, request("key", 1, endless, noon))
	wantUsed(t, s, ofKey("key"), 2)
	empty = fillDisk(t, dir, 0)
	if err := s.Close(); err != nil {
		t.Errorf("Close on a full disk: %v", err)
	}
	empty()
	closeLeft(t, dir)
	wantUsed(t, openAlone(t, dir, o), ofKey("key"), 2)
}

// TestDiskFilledAtOnce: another program fills the disk in a moment, while the store counts. The process may end. A failure
// means that the next start prints more than one line about the full disk, or that an answered request is lost.
func TestDiskFilledAtOnce(t *testing.T) {
	if !mayMount(t) {
		return
	}
	k := newKillTest(t)
	k.dir = onTmpfs(t, 128)
	for round := range 3 {
		config, err := json.Marshal(victimConfig{Dir: k.dir, Round: round, Requests: true, Refused: true, Crowd: true, Segment: 1 << 20})
		if err != nil {
			t.Fatal(err)
		}
		k.model.restart()
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), victimEnv+"="+string(config))
		var crash strings.Builder
		cmd.Stderr = &crash
		out, err := cmd.StdoutPipe()
		if err = firstOf(err, cmd.Start()); err != nil {
			t.Fatal(err)
		}
		var empty func()
		n := 0
		for output := bufio.NewScanner(out); output.Scan(); n++ {
			line := output.Text()
			if n == 3000 {
				empty = fillDisk(t, k.dir, 0)
				// The process lives, and refuses requests, or each of its callers waits in a deletion until there is room.
				defer time.AfterFunc(20*time.Second, func() { _ = cmd.Process.Kill() }).Stop()
			}
			if n == 2*maxLines {
				_ = cmd.Process.Kill()
			}
			if line != "opened" {
				if err := recordLine(k.model, line); err != nil {
					t.Error(err)
				}
			}
		}
		err = cmd.Wait()
		t.Logf("after %d lines: %v", n, err)
		if cmd.ProcessState.Exited() && !strings.Contains(crash.String(), "SIGBUS") {
			t.Errorf("got %v, want no end but by SIGBUS\n%.2000s", err, crash.String())
		}
		if empty == nil {
			t.Fatal("the process ended before the disk was full")
		}
		k.model.crash(true)
		_, err = Open(k.dir, quiet)
		wantOneLine(t, err, k.dir)
		if !errors.Is(err, diskspace.ErrFull) {
			t.Errorf("Open: got error %v, want %v", err, diskspace.ErrFull)
		}
		empty()
		s := mustOpen(t, k.dir, quiet)
		k.wantConsistent(s, "with room")
		if err := s.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	}
}

// TestStartWithoutRoomToReplay: the replay of an event log needs more room than the disk has. Open returns one line.
// With room the store opens as it was. A failure means that the start hangs or dies, because history is removed only
// while the store is open.
func TestStartWithoutRoomToReplay(t *testing.T) {
	if !mayMount(t) {
		return
	}
	dir, full := t.TempDir(), onTmpfs(t, 200)
	s := openAlone(t, dir, quiet)
	known(t, s, "key")
	writeCheckpoint(t, s)
	if err := os.Mkdir(full, 0o700); err != nil {
		t.Fatal(err)
	}
	copyDatabase(t, full, dir)                  // the database lacks all later transactions
	const users, keys, size = 40, 100, 12 << 10 // 48 MiB: twelve memtables
	random := rand.NewChaCha8([32]byte{})
	for user := int64(11); user < 11+users; user++ {
		update(t, s, func(tx core.Tx) (err error) {
			for i := range keys {
				k, metadata := newKey(user, i), make([]byte, size)
				_, _ = random.Read(metadata)
				k.Metadata = fmt.Appendf(nil, "%q", base64.StdEncoding.EncodeToString(metadata)[:size])
				err = firstOf(err, tx.PutKey(k))
			}
			return err
		})
	}
	copyEventLog(t, full, dir)
	abandon(t, s)
	dir = full
	empty := fillDisk(t, dir, 0)
	others := filepath.Join(filepath.Dir(dir), "others")
	info, err := os.Stat(others)
	if err = firstOf(err, os.Truncate(others, info.Size()-diskspace.OpeningNeeds-1<<20)); err != nil {
		t.Fatal(err)
	}
	opened := make(chan error, 1)
	go func() {
		_, err := Open(dir, quiet)
		opened <- err
	}()
	waitUntil(t, "Open ends", func() bool { return len(opened) > 0 })
	err = <-opened
	wantOneLine(t, err, dir)
	if !errors.Is(err, diskspace.ErrFull) || !strings.Contains(err.Error(), "make room") {
		t.Errorf("Open: got error %v, want %v and advice", err, diskspace.ErrFull)
	}
	empty()
	closeLeft(t, dir)
	s = openAlone(t, dir, quiet)
	if _, n, err := s.Keys(t.Context(), acct, core.KeyFilter{}, core.Page{Number: 1, Size: 1}); err != nil || n != 1+users*keys {
		t.Errorf("Keys: got %d, %v, want %d", n, err, 1+users*keys)
	}
}

// TestLostDirectory: when the directory is deleted or replaced, the store fails within a second, logs one line, and can be
// closed. A failure means that answered requests are counted nowhere, or that the process cannot be stopped.
func TestLostDirectory(t *testing.T) {
	for name, lose := range map[string]func(dir string) error{
		"deleted":   os.RemoveAll,
		"log alone": func(dir string) error { return os.RemoveAll(filepath.Join(dir, eventLogDir)) },
		"replaced": func(dir string) error {
			return errors.Join(os.Rename(dir, dir+".old"), os.Mkdir(dir, 0o700), os.Mkdir(filepath.Join(dir, eventLogDir), 0o700))
		},
	} {
		t.Run(name, func(t *testing.T) {
			var logged logLines
			dir := filepath.Join(t.TempDir(), "store")
			s := mustOpen(t, dir, Options{Logger: logged.logger()})
			l := startLoad(t, s)
			waitUntil(t, "requests are counted", func() bool { return sum(&l.answered) > 1000 })
			if err := lose(dir); err != nil {
				t.Fatal(err)
			}
			waitUntil(t, "requests are refused", func() bool { return sum(&l.refused) > 1000 })
			l.end(t)
			wantLost(t, s, dir, &logged)
		})
	}
}

// wantLost fails unless the store refuses all calls with errLost, has logged one line, and can be closed.
func wantLost(t *testing.T, s *Store, dir string, logged *logLines) {
	t.Helper()
	if _, err := s.AccountByName(t.Context(), acct); !errors.Is(err, errLost) {
		t.Errorf("AccountByName: got error %v, want %v", err, errLost)
	}
	if err := s.Health(t.Context()); !errors.Is(err, errLost) {
		t.Errorf("Health: got error %v, want %v", err, errLost)
	}
	if err := s.Close(); !errors.Is(err, errLost) {
		t.Errorf("Close: got error %v, want %v", err, errLost)
	}
	if logged.lines("\n") != 1 || logged.lines(errLost.Error()) != 1 {
		t.Errorf("logged:\n%s\nwant one line: %v", logged.text.String(), errLost)
	}
	if _, err := Open(dir, quiet); !errors.Is(err, errUnclosed) {
		t.Errorf("Open in the same process: got error %v, want %v", err, errUnclosed)
	}
}

// TestReadOnly: when the file system becomes read-only, the store refuses writes, logs one line, still answers reads, and
// can be closed.
func TestReadOnly(t *testing.T) {
	if !mayMount(t) {
		return
	}
	var logged logLines
	dir := onTmpfs(t, 128)
	s := mustOpen(t, dir, Options{Logger: logged.logger()})
	l := startLoad(t, s)
	waitUntil(t, "requests are counted", func() bool { return sum(&l.answered) > 1000 })
	disk := filepath.Dir(dir)
	const readOnlyToo = syscall.MS_BIND | syscall.MS_REMOUNT | syscall.MS_RDONLY
	if err := firstOf(syscall.Mount(disk, disk, "", syscall.MS_BIND, ""), syscall.Mount("", disk, "", readOnlyToo, "")); err != nil {
		t.Fatalf("mount: %v", err)
	}
	defer func() { _ = syscall.Unmount(disk, syscall.MNT_DETACH) }()
	waitUntil(t, "requests are refused", func() bool { return sum(&l.refused) > 1000 })
	l.end(t)
	if _, err := s.AccountByName(t.Context(), acct); err != nil {
		t.Errorf("AccountByName: %v", err)
	}
	if err := s.Close(); !errors.Is(err, syscall.EROFS) {
		t.Errorf("Close: got error %v, want %v", err, syscall.EROFS)
	}
	if logged.lines("\n") != 1 || logged.lines("read-only file system: repair or remount it") != 1 {
		t.Errorf("logged:\n%.3000s\nwant one line", logged.text.String())
	}
}

// allocate allocates the first n bytes of a file.
func allocate(fd int, n int64) error { return syscall.Fallocate(fd, 0, 0, n) }
