package e2e

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// target is what the attackers know.
type target struct {
	Gateway   string       // host:port; paths below /rogue/ are for keys of the account rogue
	API       string       // host:port
	URL       string       // of the API
	Secret    string       // of the honest end-user key: some attackers send one that is nearly the same
	Denied    []string     // secrets of the account rogue that are over their quota
	Free      string       // a secret of the account rogue that has quota left
	RoguePlan string       // a plan of the account rogue that many users have
	next      atomic.Int64 // index of the next key in Denied
}

var hostileClient = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}

// strike sends a request of an attacker and returns the status of the answer.
func (g *target) strike(ctx context.Context, method, url string, body io.Reader, header map[string]string) (int, error) {
	r, err := http.NewRequestWithContext(ctx, method, url, body)
	if err != nil {
		return 0, err
	}
	for name, v := range header {
		r.Header.Set(name, v)
	}
	resp, err := hostileClient.Do(r)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, resp.Body)
	return resp.StatusCode, err
}

// order is what the attackers do next: the named attacks, at a part of their rates.
type order struct {
	Attacks []string
	Part    int
	Lasts   time.Duration
}

// report is what an order has led to: the number of answers, by attack and status, and the processor time.
type report struct {
	Answers map[string]map[int]int
	CPU     time.Duration
}

// attackers are a process of their own that runs when a processor is idle, see sched(7). Attackers have processors of their own: on one
// machine they take only the time that the server and its honest clients leave.
type attackers struct {
	orders  *json.Encoder
	reports *json.Decoder
}

// attackersWanted makes this test binary the process of the attackers.
const attackersWanted = "LIMITKEEPER_E2E_ATTACKERS"

func startAttackers(t *testing.T, g *target) *attackers {
	t.Helper()
	cmd := exec.Command("chrt", "--idle", "0", os.Args[0])
	cmd.Env = append(os.Environ(), attackersWanted+"=1", "GOGC=800")
	cmd.Stderr = os.Stderr
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
	t.Cleanup(func() {
		in.Close()
		if err := cmd.Wait(); err != nil {
			t.Error("the attackers:", err)
		}
	})
	a := &attackers{json.NewEncoder(in), json.NewDecoder(out)}
	if err := a.orders.Encode(g); err != nil {
		t.Fatal(err)
	}
	return a
}

// attack has an order carried out, and waits for it.
func (a *attackers) attack(o order) (r report, err error) {
	if err = a.orders.Encode(o); err == nil {
		err = a.reports.Decode(&r)
	}
	return r, err
}

// attackFor carries out the orders that it reads, until there are no more.
func attackFor(orders io.Reader, reports io.Writer) error {
	g := new(target)
	in := json.NewDecoder(orders)
	if err := in.Decode(g); err != nil {
		return err
	}
	for {
		var o order
		if err := in.Decode(&o); err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
		if err := json.NewEncoder(reports).Encode(g.carryOut(o)); err != nil {
			return err
		}
	}
}

func (g *target) carryOut(o order) report {
	r := report{Answers: map[string]map[int]int{}}
	before := ownCPU()
	ctx, cancel := context.WithCancel(context.Background()) // a dialer would end at a deadline a moment before ctx does
	defer time.AfterFunc(o.Lasts, cancel).Stop()
	var mu sync.Mutex
	var loads sync.WaitGroup
	for _, name := range o.Attacks {
		a := attacks[slices.IndexFunc(attacks, func(a attack) bool { return a.name == name })]
		r.Answers[name] = map[int]int{}
		loads.Go(func() {
			paced(ctx, max(1, a.rate/o.Part), max(8, a.most/o.Part), func(int, time.Time) {
				status, err := a.strike(g, ctx)
				if err != nil {
					status = 0
					if ctx.Err() != nil {
						return // ended by the end of the order
					}
				}
				mu.Lock()
				defer mu.Unlock()
				r.Answers[name][status]++
			})
		})
	}
	loads.Wait()
	r.CPU = ownCPU() - before
	return r
}
