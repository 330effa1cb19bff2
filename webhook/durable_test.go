package webhook_test

import (
	"bufio"
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/clocktest"
	"github.com/limitkeeper/limitkeeper/core/service"
	"github.com/limitkeeper/limitkeeper/storage/badgerstore"
	"github.com/limitkeeper/limitkeeper/storage/redisstore"
	"github.com/limitkeeper/limitkeeper/storage/redisstore/redistest"
	"github.com/limitkeeper/limitkeeper/webhook"
)

// The environment of the process that TestKilled kills: the directory of its store, and the URL of the receiver.
const (
	victimDir = "LIMITKEEPER_TEST_VICTIM_DIR"
	victimURL = "LIMITKEEPER_TEST_VICTIM_URL"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(victimDir); dir != "" {
		if err := victim(dir, os.Getenv(victimURL)); err != nil {
			fmt.Println("failed:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// victim puts and delivers events until its input ends. Then it delivers the rest. It prints the id of each stored event.
func victim(dir, url string) error {
	ctx := context.Background()
	store, err := badgerstore.Open(dir, badgerstore.Options{})
	if err != nil {
		return err
	}
	began := time.Now()
	svc := service.New(store, service.Config{Clock: func() time.Time { return began.Add(100 * time.Since(began)) }}) // the retries follow soon
	svc.Tune(service.Tunables{WebhookAllowPrivate: true})
	a, err := svc.AccountByName(ctx, "acme")
	if err != nil {
		if a, _, _, err = svc.CreateAccount(ctx, "acme"); err != nil {
			return err
		}
	}
	hooks, _, err := svc.Webhooks(ctx, a.ID, core.Page{Number: 1, Size: 1})
	if err == nil && len(hooks) == 0 {
		_, err = svc.CreateWebhook(ctx, a.ID, core.WebhookPatch{URL: &url})
	}
	if err != nil {
		return err
	}
	sender := webhook.NewSender("victim", 0)
	sender.SetAllowPrivate(true)
	running, stop := context.WithCancel(ctx)
	defer stop()
	var wg sync.WaitGroup
	d := webhook.New(webhook.Options{Service: svc, Store: store, Sender: sender})
	wg.Go(func() { d.Run(running) })
	wg.Go(func() {
		for ; running.Err() == nil; time.Sleep(time.Millisecond) {
			d.Wake()
		}
	})
	ended := make(chan struct{})
	go func() {
		_, _ = bufio.NewReader(os.Stdin).ReadByte()
		close(ended)
	}()
	for i := 0; ; i++ {
		select {
		case <-ended:
			for n := 1; n > 0; time.Sleep(10 * time.Millisecond) {
				if _, n, err = store.Events(ctx, a.ID, core.EventFilter{Pending: true}, 0, 1); err != nil {
					return err
				}
			}
			stop()
			wg.Wait()
			return store.Close()
		default:
		}
		now := time.Now()
		subject := fmt.Sprint("key_", i%7)
		e := &core.Event{ID: fmt.Sprintf("%s-%d-%d", subject, os.Getpid(), i), Type: core.EventThreshold, Subject: subject, At: now, Until: now.Add(time.Hour)}
		if err := svc.PutEvents(ctx, a.ID, e); err != nil {
			return err
		}
		fmt.Println("put", e.ID)
	}
}

// Each stored event is delivered, in the order of its subject, although the process is killed 20 times at random moments. Meanwhile the receiver answers
// several requests at once, after random times, and refuses some.
func TestKilled(t *testing.T) {
	const kills = 20
	r := newReceiver(t)
	var requests requestCounter
	var refused atomic.Int64
	r.answers(func(w http.ResponseWriter, _ *http.Request, _ string) {
		requests.enter()
		defer requests.leave()
		time.Sleep(rand.N(3 * time.Millisecond))
		if rand.IntN(10) == 0 {
			refused.Add(1)
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		w.WriteHeader(http.StatusNoContent)
	})
	dir := t.TempDir()
	var stored []string
	for i := range kills + 1 {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), victimDir+"="+dir, victimURL+"="+r.URL)
		in, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		lines, n := bufio.NewScanner(out), 0
		for lines.Scan() {
			id, ok := strings.CutPrefix(lines.Text(), "put ")
			if !ok {
				t.Fatalf("the process: %s", lines.Text())
			}
			stored = append(stored, id)
			if n++; n == 5+11*i%40 {
				if i == kills {
					_ = in.Close()
				} else {
					_ = cmd.Process.Kill()
				}
			}
		}
		if err := cmd.Wait(); (err == nil) != (i == kills) {
			t.Fatalf("process %d: got %v", i, err)
		}
	}
	got, accepted := r.ids()
	once := bySubject(unique(accepted))
	for subject, ids := range bySubject(stored) {
		// The process may be killed after it stores an event and before it prints the line.
		known := slices.DeleteFunc(once[subject], func(id string) bool { return !slices.Contains(ids, id) })
		if !slices.Equal(known, ids) {
			t.Errorf("%s: got %d events, want these %d in order", subject, len(known), len(ids))
		}
	}
	if requests.peakSoFar() < 2 || refused.Load() == 0 {
		t.Errorf("got %d requests at once and %d refused, want several", requests.peakSoFar(), refused.Load())
	}
	t.Logf("%d kills, %d events stored, %d requests, of which %d refused, at most %d at once", kills, len(stored), len(got), refused.Load(), requests.peakSoFar())
}

// unique returns the ids without repetitions, in the order of their first occurrences.
func unique(ids []string) (list []string) {
	seen := map[string]bool{}
	for _, id := range ids {
		if !seen[id] {
			seen[id] = true
			list = append(list, id)
		}
	}
	return list
}

// startNodes starts two nodes on one Redis, each with a deliverer, and creates an account. The functions stop the deliverers.
func startNodes(t *testing.T, o redisstore.Options) (nodes []*env, stops []func()) {
	t.Helper()
	for range 2 {
		store, err := redisstore.Open(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = store.Close() })
		e := &env{t: t, clock: clocktest.New(time.Now()), store: store, svc: service.New(store, service.Config{})}
		e.svc.Tune(service.Tunables{WebhookAllowPrivate: true})
		sender := webhook.NewSender("test", 0)
		sender.SetAllowPrivate(true)
		e.deliverer = webhook.New(webhook.Options{Service: e.svc, Store: store, Sender: sender})
		ctx, cancel := context.WithCancel(context.Background())
		var running sync.WaitGroup
		running.Go(func() { e.deliverer.Run(ctx) })
		stop := func() { cancel(); running.Wait() }
		t.Cleanup(stop)
		nodes, stops = append(nodes, e), append(stops, stop)
	}
	a, _, _, err := nodes[0].svc.CreateAccount(t.Context(), "acme")
	if err != nil {
		t.Fatal(err)
	}
	nodes[0].account, nodes[1].account = a.ID, a.ID
	return nodes, stops
}

// Of two nodes on one Redis, one delivers. When it stops, the other takes over, and no event is lost.
func TestTwoNodes(t *testing.T) {
	r := newReceiver(t)
	nodes, stops := startNodes(t, redisstore.Options{Addresses: []string{redistest.Start(t).Addr()}})
	w := nodes[0].webhook(r)
	want := append(nodes[0].put("a", 1, 20), nodes[1].put("b", 1, 20)...)
	nodes[0].until("all are delivered", 0, func() bool { return nodes[1].pending(w) == 0 })
	nodes[0].until("the nodes have counted all", 0, func() bool {
		return nodes[0].deliverer.Stats().Delivered+nodes[1].deliverer.Stats().Delivered >= int64(len(want))
	})
	first, second := nodes[0].deliverer.Stats().Delivered, nodes[1].deliverer.Stats().Delivered
	if min(first, second) != 0 || first+second != int64(len(want)) {
		t.Errorf("the nodes have delivered %d and %d events, want %d by one node", first, second, len(want))
	}
	holder := 0
	if second > 0 {
		holder = 1
	}
	stops[holder]()
	want = append(want, nodes[1-holder].put("a", 21, 40)...)
	nodes[1-holder].until("the other node delivers", 0, func() bool { return nodes[1-holder].pending(w) == 0 })
	_, accepted := r.ids()
	slices.Sort(accepted)
	slices.Sort(want)
	if !slices.Equal(accepted, want) {
		t.Errorf("got %v, want %v", accepted, want)
	}
}
