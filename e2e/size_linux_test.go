package e2e

import (
	"bufio"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// Keys, users and requests take no more room on the disk than docs/operations.md says. When this fails, disks that were sized
// with the document are too small. LIMITKEEPER_SIZE=100000 measures the figures of the document, with ten requests for each key.
func TestSize(t *testing.T) {
	keys := 1000
	if v := os.Getenv("LIMITKEEPER_SIZE"); v != "" {
		var err error
		if keys, err = strconv.Atoi(v); err != nil {
			t.Fatal(err)
		}
	}
	s := newSite(t, "respond ok")
	p := s.start()
	t.Logf("empty: %s", memory(t, p))
	s.must("POST", "/functions/v1/plans", map[string]any{"name": "Pro", "max_requests": 1_000_000, "request_period": "year"}, nil)
	secret := func(i int) string { return fmt.Sprintf("lk_user_%032d", i) }
	importKeys(t, s, keys, secret)
	t.Logf("%d keys of %d users imported: %s", keys, keys/2, memory(t, p))
	s.stop(p)
	imported := diskUse(t, s.dir)

	p = s.start()
	t.Logf("started again: %s", memory(t, p))
	s.requests(keys, keys, secret)
	t.Logf("one request of each key: %s", memory(t, p))
	s.stop(p)
	used := diskUse(t, s.dir)

	p = s.start()
	s.requests(9*keys, keys, secret)
	t.Logf("%d requests: %s", 10*keys, memory(t, p))
	backup := filepath.Join(s.dir, "backup.zst")
	begun := time.Now()
	if out, err := exec.Command(binary, "backup", backup, "--address", "localhost:"+s.admin).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if info, err := os.Stat(backup); err == nil {
		t.Logf("backup: %d bytes in %v: %s", info.Size(), time.Since(begun).Round(time.Millisecond), memory(t, p))
	}
	s.stop(p)
	full := diskUse(t, s.dir)

	t.Logf("tables: %d bytes for each key with its half of a user, %d with its counters; %d after %d requests",
		imported.tables/keys, used.tables/keys, full.tables/keys, 10*keys)
	t.Logf("event log: %d bytes for each key, %d for each request", imported.log/keys, (full.log-used.log)/(9*keys))
	if got := (full.log - used.log) / (9 * keys); got < 20 || got > 533 {
		t.Errorf("got %d bytes of the event log for each request, want at most 533", got)
	}
	if got := imported.log / keys; got < 20 || got > 1000 {
		t.Errorf("got %d bytes of the event log for each imported key, want at most 1000", got)
	}
	// Not the tables of the end: with few keys most of them are counters of earlier checkpoints, which Badger has not merged yet.
	if got := imported.tables / keys; got < 20 || got > 500 {
		t.Errorf("got %d bytes of tables for each imported key, want at most 500", got)
	}
}

// importKeys imports keys of half as many users. All limits are in the plan of the user.
func importKeys(t *testing.T, s *site, n int, secret func(int) string) {
	t.Helper()
	path := filepath.Join(s.dir, "keys.csv")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	w := bufio.NewWriter(f)
	fmt.Fprintln(w, "key,user_external_id,user_email,user_name,plan,name")
	for i := range n {
		u := i / 2
		fmt.Fprintf(w, "%s,cus_%08d,dev%08d@customer.example,Customer %d,Pro,production\n", secret(i), u, u, u)
	}
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(binary, "import", "--csv", path, "--account", "default", "--address", "localhost:"+s.admin).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

// requests sends n requests through the gateway, with each key in turn.
func (s *site) requests(n, keys int, secret func(int) string) {
	s.t.Helper()
	var next atomic.Int64
	var wg sync.WaitGroup
	for range 32 {
		wg.Go(func() {
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				status, b, err := s.send(http.MethodGet, "/v1/items/0000000000", nil, map[string]string{"X-API-Key": secret(i % keys)})
				if err != nil || status != 200 {
					s.t.Errorf("got %d %s (%v)", status, b, err)
					return
				}
			}
		})
	}
	wg.Wait()
}

// stop ends the server, which writes a checkpoint.
func (s *site) stop(p *process) {
	s.t.Helper()
	if code, err := p.end(syscall.SIGTERM); err != nil || code != 0 {
		s.t.Fatalf("ended with %d: %v\n%s", code, err, p.output())
	}
}

// memory returns the peak memory of a process, its present memory, and the part of it that is not the page cache.
func memory(t *testing.T, p *process) string {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(regexp.MustCompile(`(?m)^(?:VmHWM|VmRSS|RssAnon):.*$`).FindAllString(string(status), -1), ", ")
}

// disk is the size of the files of a store, in bytes.
type disk struct{ tables, log int }

// diskUse adds the lengths of the files in the directory of the store. The mapped buffers are left out.
func diskUse(t *testing.T, dir string) (d disk) {
	t.Helper()
	err := filepath.WalkDir(filepath.Join(dir, "data"), func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		size := int(info.Size())
		if stat, ok := info.Sys().(*syscall.Stat_t); ok {
			size = min(size, int(stat.Blocks)*512)
		}
		switch {
		case strings.HasSuffix(path, ".sst"):
			d.tables += size
		case strings.HasSuffix(path, ".seg"):
			d.log += size
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return d
}
