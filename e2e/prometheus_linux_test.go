package e2e

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/clocktest"
	"github.com/limitkeeper/limitkeeper/internal/freeport"
	"github.com/limitkeeper/limitkeeper/storage/badgerstore"
	"github.com/limitkeeper/limitkeeper/storage/redisstore/redistest"
)

// alertRule is a rule of deploy/prometheus/alerts.yml.
type alertRule struct {
	Alert       string
	Expr        string
	For         string
	Labels      map[string]string
	Annotations map[string]string
}

// alertRules returns the rules of deploy/prometheus/alerts.yml.
func alertRules(t *testing.T) (rules []alertRule) {
	t.Helper()
	var file struct {
		Groups []struct{ Rules []alertRule }
	}
	if err := yaml.Unmarshal([]byte(readDocument(t, filepath.Join(root, "deploy/prometheus/alerts.yml"))), &file); err != nil {
		t.Fatal(err)
	}
	for _, g := range file.Groups {
		rules = append(rules, g.Rules...)
	}
	return rules
}

// panel is a panel of deploy/grafana/dashboard.json.
type panel struct {
	ID          int
	Type        string
	Title       string
	FieldConfig struct{ Defaults struct{ Unit string } }
	Targets     []struct{ Expr, LegendFormat string }
}

// dashboardPanels returns the panels of deploy/grafana/dashboard.json.
func dashboardPanels(t *testing.T) []panel {
	t.Helper()
	var dashboard struct{ Panels []panel }
	if err := json.Unmarshal([]byte(readDocument(t, filepath.Join(root, "deploy/grafana/dashboard.json"))), &dashboard); err != nil {
		t.Fatal(err)
	}
	return dashboard.Panels
}

// variables replaces the variables of the dashboard by all values.
var variables = strings.NewReplacer("$instance", ".*", "$account", ".*", "$__rate_interval", "1m")

// query is a query of the dashboard, or a metric of an alert.
type query struct{ place, expr string }

// dashboardQueries returns the queries of the dashboard.
func dashboardQueries(t *testing.T) (queries []query) {
	t.Helper()
	ids := map[int]bool{}
	for _, p := range dashboardPanels(t) {
		if ids[p.ID] {
			t.Errorf("two panels have the id %d", p.ID)
		}
		ids[p.ID] = true
		for _, target := range p.Targets {
			queries = append(queries, query{p.Title, variables.Replace(target.Expr)})
		}
	}
	return queries
}

// prometheus is a running Prometheus.
type prometheus struct{ url string }

// shortened replaces the durations of alerts, so that each alert fires and clears within seconds. A node writes a
// checkpoint every 10 s: a checkpoint is late after 20 s instead of 300 s.
func shortened(rules string) string {
	rules = regexp.MustCompile(`> 300\b`).ReplaceAllString(rules, "> 20")
	rules = regexp.MustCompile(`\[\d+[smh]\]`).ReplaceAllString(rules, "[4s]")
	return regexp.MustCompile(`for: \d+[smh]`).ReplaceAllString(rules, "for: 1s")
}

// startPrometheus runs Prometheus with the files of deploy/prometheus. Only the targets, the intervals and the durations of
// alerts are other ones.
func startPrometheus(t *testing.T, targets []string) *prometheus {
	t.Helper()
	dir := t.TempDir()
	config := readDocument(t, filepath.Join(root, "deploy/prometheus/prometheus.yml"))
	list, _ := json.Marshal(targets)
	replaced := regexp.MustCompile(`targets: .*`).ReplaceAllString(config, "targets: "+string(list))
	// The interval is also the timeout of a scrape. With 500 ms, scrapes of a node under strace fail while other
	// processes take the CPUs.
	replaced = regexp.MustCompile(`interval: 15s`).ReplaceAllString(replaced, "interval: 1s")
	for name, text := range map[string]string{
		"prometheus.yml": replaced,
		"alerts.yml":     shortened(readDocument(t, filepath.Join(root, "deploy/prometheus/alerts.yml"))),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	port := freeport.Take(t)
	p, err := launch(program(t, "prometheus"), dir, "prometheus", os.Environ(), "--config.file=prometheus.yml", "--storage.tsdb.path=data",
		"--web.listen-address=127.0.0.1:"+port)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.kill)
	if err := p.await("Server is ready to receive web requests"); err != nil {
		t.Fatal(err)
	}
	return &prometheus{"http://127.0.0.1:" + port}
}

// program returns the path of a program that make deps installs.
func program(t *testing.T, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		t.Fatalf("this test needs %s, see make deps: %v", name, err)
	}
	return path
}

// get reads the member data of an answer of the HTTP API into v.
func (p *prometheus) get(path string, v any) error {
	resp, err := client.Get(p.url + "/api/v1/" + path)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	answer := struct {
		Status, Error string
		Data          any
	}{Data: v}
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil {
		return err
	}
	if answer.Status != "success" {
		return fmt.Errorf("%s: %s", path, answer.Error)
	}
	return nil
}

// values returns the values of a query by their labels. It leaves out NaN, the quotient of two rates of 0.
func (p *prometheus) values(expr string) (map[string]float64, error) {
	var result struct {
		Result []struct {
			Metric map[string]string
			Value  [2]any
		}
	}
	if err := p.get("query?query="+url.QueryEscape(expr), &result); err != nil {
		return nil, err
	}
	values := map[string]float64{}
	for _, r := range result.Result {
		text, _ := r.Value[1].(string)
		if n, err := strconv.ParseFloat(text, 64); err == nil && !math.IsNaN(n) {
			values[fmt.Sprint(r.Metric)] = n
		}
	}
	return values, nil
}

// firing reports whether an alert of a target fires.
func (p *prometheus) firing(alert, target string) (bool, error) {
	var result struct {
		Alerts []struct {
			Labels map[string]string
			State  string
		}
	}
	err := p.get("alerts", &result)
	for _, a := range result.Alerts {
		if a.Labels["alertname"] == alert && a.Labels["instance"] == target && a.State == "firing" {
			return true, err
		}
	}
	return false, err
}

// provoked is the set of alerts that have fired and cleared.
type provoked struct {
	mu     sync.Mutex
	alerts map[string]bool
}

func (f *provoked) add(alerts ...string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, a := range alerts {
		f.alerts[a] = true
	}
}

// watched is a node that Prometheus watches.
type watched struct {
	*site
	prometheus *prometheus
	seen       *provoked
	process    *process
}

func (w *watched) target() string { return "localhost:" + w.admin }

// await waits until alerts of the node fire, or do not fire.
func (w *watched) await(t *testing.T, firing bool, alerts ...string) {
	t.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(100 * time.Millisecond) {
		var wrong []string
		for _, a := range alerts {
			if now, err := w.prometheus.firing(a, w.target()); err != nil || now != firing {
				wrong = append(wrong, a)
			}
		}
		if len(wrong) == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%v: want firing: %t", wrong, firing)
		}
	}
}

// provoke checks that alerts do not fire, fire after begin, and clear after end.
func (w *watched) provoke(t *testing.T, begin, end func(), alerts ...string) {
	t.Helper()
	w.await(t, false, alerts...)
	begin()
	w.await(t, true, alerts...)
	end()
	w.await(t, false, alerts...)
	w.seen.add(alerts...)
}

// load makes requests at the gateway and at /validate until the end of the test. Some fail while an alert is provoked.
func (w *watched) load(t *testing.T) {
	t.Helper()
	_, secret := w.newKey(1_000_000)
	t.Cleanup(repeat(10*time.Millisecond, func() {
		_, _, _ = w.send(http.MethodGet, "/x", nil, map[string]string{"X-API-Key": secret})
		_, _, _ = w.call(http.MethodPost, "/functions/v1/validate", map[string]any{"api_key": secret, "endpoint": "/x", "method": "GET"})
	}))
}

// repeat calls fn with pauses until stop is called. stop waits for the last call.
func repeat(pause time.Duration, fn func()) (stop func()) {
	stopped := make(chan struct{})
	var group sync.WaitGroup
	group.Go(func() {
		for {
			fn()
			select {
			case <-stopped:
				return
			case <-time.After(pause):
			}
		}
	})
	return func() { close(stopped); group.Wait() }
}

// rewrite replaces a text of the config.
func (s *site) rewrite(old, new string) {
	s.t.Helper()
	text := readDocument(s.t, s.config)
	if !strings.Contains(text, old) {
		s.t.Fatalf("the config has no %q", old)
	}
	if err := os.WriteFile(s.config, []byte(strings.ReplaceAll(text, old, new)), 0o600); err != nil {
		s.t.Fatal(err)
	}
}

// A real Prometheus scrapes real nodes with the files of deploy/prometheus. Each query of the dashboard returns data, and each
// alert fires when its cause is provoked and clears afterwards. When this fails, nobody is paged, or the pager never stops.
func TestPrometheus(t *testing.T) {
	// One node on a small disk of its own, one whose directory, process and clock are attacked, one on Redis, and one whose
	// disk becomes slow and fails.
	redis := redistest.Start(t)
	small := newSiteOn(t, "badger disk/data {\nmin_free 32MiB\n}", "", "respond ok")
	disk := filepath.Join(small.dir, "disk")
	if err := os.Mkdir(disk, 0o700); err != nil {
		t.Fatal(err)
	}
	small.within = []string{"unshare", "--user", "--map-root-user", "--mount", "sh", "-c", `mount -t tmpfs -o size=256m tmpfs "$0" && exec "$@"`, disk}
	plain := newSite(t, "respond ok")
	plain.rewrite("service_rate_limit off", "service_rate_limit 50/1m")
	onRedis := newSiteOn(t, "redis "+redis.Addr(), "", "respond ok")
	onSlowDisk := newSite(t, "respond ok")

	began := time.Now()
	seen := &provoked{alerts: map[string]bool{}}
	var nodes []*watched
	var targets []string
	for _, s := range []*site{small, plain, onRedis, onSlowDisk} {
		w := &watched{site: s, seen: seen, process: s.start()}
		nodes, targets = append(nodes, w), append(targets, w.target())
	}
	p := startPrometheus(t, targets)
	for _, w := range nodes {
		w.prometheus = p
	}
	nodes[0].load(t)
	nodes[2].load(t)
	nodes[3].load(t)

	t.Run("all", func(t *testing.T) {
		t.Run("queries", func(t *testing.T) { t.Parallel(); everyQueryHasData(t, p) })
		t.Run("disk", func(t *testing.T) { t.Parallel(); nodes[0].fillDisk(t, disk) })
		t.Run("process", func(t *testing.T) { t.Parallel(); nodes[1].breakProcess(t) })
		t.Run("redis", func(t *testing.T) { t.Parallel(); nodes[2].breakRedis(t, redis) })
		t.Run("slow disk", func(t *testing.T) { t.Parallel(); nodes[3].breakDisk(t) })
	})
	p.takePicture(t, time.Since(began))
	for _, r := range alertRules(t) {
		if !seen.alerts[r.Alert] && !t.Failed() {
			t.Errorf("no test provokes the alert %s", r.Alert)
		}
	}
}

// Each alert has a severity, a summary, a description, and a link to its section in docs/operations.md. When this fails, a
// page does not tell what to do.
func TestAlertsHaveRunbooks(t *testing.T) {
	sections := anchors(readDocument(t, filepath.Join(root, "docs/operations.md")))
	rules := alertRules(t)
	if len(rules) < 10 {
		t.Errorf("found %d alerts, want all", len(rules))
	}
	for _, r := range rules {
		_, anchor, _ := strings.Cut(r.Annotations["runbook"], "docs/operations.md#")
		if anchor != strings.ToLower(r.Alert) || !sections[anchor] {
			t.Errorf("%s: docs/operations.md has no section for the link %s", r.Alert, r.Annotations["runbook"])
		}
		if s := r.Labels["severity"]; s != "critical" && s != "warning" || r.Annotations["summary"] == "" || r.Annotations["description"] == "" {
			t.Errorf("%s: severity, summary or description is missing", r.Alert)
		}
	}
}

// The files of deploy/prometheus are valid. When this fails, Prometheus does not start with them.
func TestAlertsAreValid(t *testing.T) {
	for check, file := range map[string]string{"config": "prometheus.yml", "rules": "alerts.yml"} {
		out, err := exec.Command(program(t, "promtool"), "check", check, filepath.Join(root, "deploy/prometheus", file)).CombinedOutput()
		if err != nil {
			t.Errorf("promtool check %s: %v\n%s", check, err, out)
		}
	}
}

// No alert fires for the single faults of testdata/quiet_alerts.yml. When this fails, the pager is soon ignored.
func TestAlertsAreQuiet(t *testing.T) {
	out, err := exec.Command(program(t, "promtool"), "test", "rules", filepath.Join("testdata", "quiet_alerts.yml")).CombinedOutput()
	if err != nil {
		t.Errorf("promtool: %v\n%s", err, out)
	}
}

// everyQueryHasData runs each query of the dashboard and looks for each metric of an alert until all have a value.
func everyQueryHasData(t *testing.T, p *prometheus) {
	queries := dashboardQueries(t)
	if len(queries) < 30 {
		t.Errorf("the dashboard has %d queries, want all", len(queries))
	}
	for _, r := range alertRules(t) {
		if _, err := p.values(r.Expr); err != nil {
			t.Errorf("%s: %v", r.Alert, err)
		}
		for _, name := range regexp.MustCompile(`\b(limitkeeper_\w+|up)\b`).FindAllString(r.Expr, -1) {
			queries = append(queries, query{"alert " + r.Alert, name})
		}
	}
	for _, q := range queries {
		for deadline := time.Now().Add(patience); ; time.Sleep(200 * time.Millisecond) {
			values, err := p.values(q.expr)
			if err == nil && len(values) > 0 {
				break
			}
			if time.Now().After(deadline) || err != nil {
				t.Errorf("%s: %s: no data (%v)", q.place, q.expr, err)
				break
			}
		}
	}
}

// fillDisk fills the disk of the node, and removes the file again.
func (w *watched) fillDisk(t *testing.T, disk string) {
	file := filepath.Join("/proc", strconv.Itoa(w.process.cmd.Process.Pid), "root", disk, "others")
	w.provoke(t, func() {
		f, err := os.Create(file)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		for err == nil {
			_, err = f.Write(make([]byte, 1<<20))
		}
	}, func() {
		if err := os.Remove(file); err != nil {
			t.Fatal(err)
		}
	}, "LimitkeeperDiskLow", "LimitkeeperStoreUnavailable", "LimitkeeperErrors")
}

// breakProcess makes too many requests with an owner's key, moves the directory of the store away, kills the process, and
// starts it again on a clock that is 40 days ahead of the last checkpoint.
func (w *watched) breakProcess(t *testing.T) {
	_, secret := w.newKey(1_000_000)
	stop := func() {}
	w.provoke(t, func() {
		stop = repeat(5*time.Millisecond, func() {
			_, _, _ = w.call(http.MethodPost, "/functions/v1/validate", map[string]any{"api_key": secret, "endpoint": "/x", "method": "GET"})
		})
	}, func() { stop() }, "LimitkeeperThrottled")

	data, away := filepath.Join(w.dir, "data"), filepath.Join(w.dir, "away")
	move := func(from, to string) {
		t.Helper()
		if err := os.Rename(from, to); err != nil {
			t.Fatal(err)
		}
	}
	w.provoke(t, func() { move(data, away) }, func() {
		w.provoke(t, w.process.kill, func() {
			move(away, data)
			w.process = w.start()
		}, "LimitkeeperDown")
	}, "LimitkeeperStoreDamaged")

	w.provoke(t, func() {
		w.process.kill()
		behind := clocktest.New(time.Now().AddDate(0, 0, -40))
		store, err := badgerstore.Open(data, badgerstore.Options{Clock: core.NewClock(behind.Read, nil), Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		if err := store.Close(); err != nil { // writes a checkpoint
			t.Fatal(err)
		}
		w.process = w.start()
	}, func() { w.run(0, "clock", "accept", "--address", w.target()) }, "LimitkeeperClockJump")
}

// breakRedis stops Redis for a while, makes it slow, and makes it lose all data.
func (w *watched) breakRedis(t *testing.T, redis *redistest.Server) {
	w.provoke(t, redis.Pause, redis.Resume, "LimitkeeperRedisMasterAway", "LimitkeeperStoreUnavailable", "LimitkeeperErrors")

	stop := func() {}
	w.provoke(t, func() {
		stop = repeat(320*time.Millisecond, func() { _, _ = redis.Try("CLIENT", "PAUSE", "300", "ALL") })
	}, func() { stop() }, "LimitkeeperSlowDecisions")

	w.provoke(t, func() { redis.Do(t, "FLUSHALL") }, func() { w.run(0, "store", "accept", "--address", w.target()) }, "LimitkeeperRedisLost")
}

// breakDisk makes each write of the event log take 0.2 s, and each checkpoint fail. strace injects both faults into system
// calls: the event log writes with pwrite64 and syncs with fdatasync, and only checkpoints call fsync.
func (w *watched) breakDisk(t *testing.T) {
	var faults *process
	w.provoke(t, func() {
		var err error
		faults, err = launch(program(t, "strace"), w.dir, "strace", os.Environ(), "-f", "-p", strconv.Itoa(w.process.cmd.Process.Pid),
			"-o", os.DevNull, "-e", "trace=pwrite64,fsync", "-e", "inject=pwrite64:delay_enter=200ms", "-e", "inject=fsync:error=EIO")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(faults.kill)
		if err := faults.await("attached"); err != nil {
			t.Fatal(err)
		}
	}, func() {
		if _, err := faults.end(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
	}, "LimitkeeperSlowCommits", "LimitkeeperCheckpointLate")
}
