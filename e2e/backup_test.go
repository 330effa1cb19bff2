package e2e

import (
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/limitkeeper/limitkeeper/storage/redisstore/redistest"
)

// keptEntries is the number of entries that Redis keeps of a history.
const keptEntries = 10_000

// smallQuota is the quota of the key that has denials.
const smallQuota = 50

// A backup that is made under load has each answer that a client got before it, and nothing that no client asked for. On Badger
// counters and histories are of the same instant; on Redis a history is read after its counter. The server is killed during a second backup, which then leaves no file. A store that is restored from the first backup goes
// on counting. When this fails, a restore loses counted requests, or counts requests that nobody sent.
func TestBackup(t *testing.T) {
	for _, tt := range []struct {
		name  string
		store func(*testing.T) string
	}{
		{"badger", func(*testing.T) string { return "badger data" }},
		{"redis cluster", func(t *testing.T) string { return redisStore(redistest.StartCluster(t).Addrs()...) }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			testBackup(t, tt.store(t))
		})
	}
}

func testBackup(t *testing.T, store string) {
	s := newSiteOn(t, store, "", "respond ok")
	p := s.start()
	load := &crashLoad{s: s}
	for range 3 {
		load.add(1_000_000)
	}
	load.add(smallQuota)
	load.begin()
	load.reach(1500)
	time.Sleep(loadTime(t))

	before := make([]int64, len(load.keys))
	for i, k := range load.keys {
		before[i] = k.allowed.Load()
	}
	load.mu.Lock()
	created := slices.Clone(load.created)
	load.mu.Unlock()
	file := filepath.Join(s.dir, "backup.ndjson.zst")
	s.run(0, "backup", file, "--address", "localhost:"+s.admin)
	after := make([]int64, len(load.keys))
	for i, k := range load.keys {
		after[i] = k.sent.Load()
	}

	second := filepath.Join(s.dir, "second")
	if err := os.Mkdir(second, 0o700); err != nil {
		t.Fatal(err)
	}
	cut, err := launch(binary, s.dir, "cut", os.Environ(), "backup", filepath.Join(second, "backup.ndjson"), "--rate", "300kB", "--address", "localhost:"+s.admin)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cut.kill)
	awaitPartial(t, second, cut)
	if _, err := p.end(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	load.stop()
	<-cut.done
	if cut.code == 0 { // the server had sent everything before it was killed
		s.run(0, "import", filepath.Join(second, "backup.ndjson"), "--dry-run", "--store", "badger:none")
	} else if left, err := os.ReadDir(second); err != nil || len(left) > 0 {
		t.Errorf("the second backup left %v (%v), want no file:\n%s", left, err, cut.output())
	}
	t.Logf("the second backup ended with %d: %s", cut.code, cut.output())

	to := newSiteOn(t, "badger data", "", "respond ok")
	to.run(0, "restore", file, "--store", "badger:data")
	to.run(1, "restore", file, "--store", "badger:"+filepath.Join(root, "go.mod"))
	to.start()
	for i, k := range load.keys {
		used, entries := to.used(k.id)
		if used < before[i] || used > after[i] || used > k.quota {
			t.Errorf("key %d: %d used; want at least the %d answered before the backup, at most the %d sent until its end and the quota %d",
				i, used, before[i], after[i], k.quota)
		}
		kept, most := min(used, keptEntries-(after[i]-used)), used // later entries may have pushed out earlier ones
		if strings.HasPrefix(store, "redis") {
			most = after[i]
		}
		if entries < kept || k.quota > smallQuota && entries > most {
			t.Errorf("key %d: %d used and %d entries, want as many entries, up to %d, and denials only for the quota of %d", i, used, entries, most, smallQuota)
		}
		status, b, err := to.send(http.MethodGet, "/x", nil, map[string]string{"X-API-Key": k.secret})
		if err != nil || (status == 200) != (used < k.quota) {
			t.Errorf("key %d with %d used: got %d %s (%v)", i, used, status, b, err)
		}
		if now, _ := to.used(k.id); now != min(used+1, k.quota) {
			t.Errorf("key %d: %d used after another request, want %d", i, now, min(used+1, k.quota))
		}
	}
	for _, path := range created {
		if status, b, err := to.call(http.MethodGet, path, nil); err != nil || status != 200 {
			t.Errorf("%s was created before the backup: got %d %s (%v)", path, status, b, err)
		}
	}
	t.Logf("%d requests were sent, %v of them answered as allowed before the backup, %d users and keys were made before", load.sent.Load(), before, len(created))
}

// awaitPartial waits until a backup has written a part of its file, or has ended.
func awaitPartial(t *testing.T, dir string, backup *process) {
	t.Helper()
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		select {
		case <-backup.done:
			return
		default:
		}
		files, _ := filepath.Glob(filepath.Join(dir, "*"))
		for _, file := range files {
			if info, err := os.Stat(file); err == nil && info.Size() > 0 {
				return
			}
		}
	}
	t.Fatal("the second backup has written nothing")
}

// loadTime returns how much longer clients send requests before the backup: LIMITKEEPER_BACKUP, such as 2m.
func loadTime(t *testing.T) time.Duration {
	t.Helper()
	text := os.Getenv("LIMITKEEPER_BACKUP")
	if text == "" {
		return 0
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// run runs a command of the binary in the directory of the site, and checks its exit status.
func (s *site) run(status int, args ...string) string {
	s.t.Helper()
	cmd := exec.Command(binary, args...)
	cmd.Dir = s.dir
	out, _ := cmd.CombinedOutput()
	if cmd.ProcessState.ExitCode() != status {
		s.t.Fatalf("limitkeeper %s: ended with %d, want %d:\n%s", fmt.Sprint(args), cmd.ProcessState.ExitCode(), status, out)
	}
	return string(out)
}
