package command

import (
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/internal/freeport"
)

// goFile matches a Go file of a document that begins with its name.
var goFile = regexp.MustCompile("(?ms)^```go\n(// ([a-z]+\\.go)\n.*?)^```$")

// billingReceiver is a receiver of docs/recipes.md that runs as a process, and the billing system to which it sends.
type billingReceiver struct {
	*billing
	t       *testing.T
	name    string
	binary  string
	dir     string // where it runs
	address string
	process *exec.Cmd
}

// newBillingReceiver compiles receiver.go and the file of a billing system from docs/recipes.md.
func newBillingReceiver(t *testing.T, name string, b *billing) *billingReceiver {
	t.Helper()
	text, err := os.ReadFile("../../docs/recipes.md")
	if err != nil {
		t.Fatal(err)
	}
	r := &billingReceiver{billing: b, t: t, name: name, dir: t.TempDir(), address: "127.0.0.1:" + freeport.Take(t)}
	code := t.TempDir()
	r.binary = filepath.Join(code, name)
	build := exec.Command("go", "build", "-o", r.binary)
	for _, m := range goFile.FindAllStringSubmatch(string(text), -1) {
		if m[2] == "receiver.go" || m[2] == name+".go" {
			path := filepath.Join(code, m[2])
			if err := os.WriteFile(path, []byte(m[1]), 0o600); err != nil {
				t.Fatal(err)
			}
			build.Args = append(build.Args, path)
		}
	}
	if len(build.Args) != 6 {
		t.Fatalf("docs/recipes.md lacks receiver.go or %s.go: %v", name, build.Args)
	}
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("compiling %s.go: %v\n%s", name, err, out)
	}
	return r
}

// start starts the process, and waits until it listens.
func (r *billingReceiver) start(secret string) {
	r.t.Helper()
	upper := strings.ToUpper(r.name)
	r.process = exec.Command(r.binary)
	r.process.Dir = r.dir
	r.process.Env = append(os.Environ(), "WEBHOOK_SECRET="+secret, "LISTEN="+r.address, "METERS=requests,tokens", upper+"_URL="+r.URL, upper+"_KEY="+r.token, upper+"_TOKEN="+r.token)
	if err := r.process.Start(); err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(r.kill)
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		if conn, err := net.Dial("tcp", r.address); err == nil {
			_ = conn.Close()
			return
		}
		if time.Now().After(deadline) {
			r.t.Fatalf("%s does not listen within 20 s", r.name)
		}
	}
}

// kill kills the process, and waits for its end.
func (r *billingReceiver) kill() {
	if r.process != nil {
		_ = r.process.Process.Kill()
		_ = r.process.Wait()
		r.process = nil
	}
}

// wantSums fails unless the billing system has these sums.
func (r *billingReceiver) wantSums(want map[string]int64) {
	r.t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	got := maps.Clone(r.sums)
	delete(got, "") // of OpenMeter: the ids
	if diff := cmp.Diff(want, got); diff != "" {
		r.t.Errorf("%s: (-want +got)\n%s", r.name, diff)
	}
	for _, text := range r.refused {
		if !strings.Contains(text, "already") {
			r.t.Errorf("%s has refused a request: %s", r.name, text)
		}
	}
}

// The receivers of docs/recipes.md bill the same sums as the report, although the billing system fails, an answer is lost, the receivers are killed, and the
// feed is rewound. The files of the receivers pass usage verify.
func TestBillingRecipes(t *testing.T) {
	receivers := []*billingReceiver{
		newBillingReceiver(t, "stripe", newBilling(t, stripe)),
		newBillingReceiver(t, "openmeter", newBilling(t, openMeter)),
		newBillingReceiver(t, "lago", newBilling(t, lago)),
	}
	other := newBodies(t).URL
	f := newFeedServer(t, other, other, other)
	_, carl := f.traffic()
	const bob = 2
	setExternalID := func(id core.Optional[string]) {
		_, err := f.Service().UpdateUser(t.Context(), f.account, bob, core.UserPatch{ExternalID: id})
		f.Must(err)
	}
	setExternalID(core.Null[string]())
	f.passTo(time.Now()) // the receivers refuse deliveries of other days
	f.delivered()
	for i, r := range receivers {
		r.start(string(f.hooks[i].Secrets[0].Value))
		_, err := f.Service().UpdateWebhook(t.Context(), f.account, f.hooks[i].ID, core.WebhookPatch{URL: new("http://" + r.address + "/usage")})
		f.Must(err)
	}
	_, err := f.Service().RewindUsageFeed(t.Context(), f.account, core.HourOf(f.day)-1)
	f.Must(err)
	f.Must(f.Service().DeleteUser(t.Context(), f.account, carl.ID)) // with the hours that are not written
	f.delivered()
	byCustomer := map[string]int64{"cus_anna requests": 21, "cus_anna tokens": 1400, "cus_carl requests": 4, "cus_carl tokens": 400} // bob has no external id yet
	bySubject := map[string]int64{"user_2 requests": 8, "user_2 tokens": 500}
	for of, n := range byCustomer {
		bySubject[strings.NewReplacer("cus_anna", "user_1", "cus_carl", "user_3").Replace(of)] = n
	}
	check := func() {
		t.Helper()
		for _, r := range receivers {
			want := byCustomer
			if r.name == "openmeter" {
				want = bySubject
			}
			r.wantSums(want)
			out, err := f.usage("", "verify", "acme", "--received", filepath.Join(r.dir, "received.ndjson"), "--from", f.day.AddDate(0, 0, -1).Format(time.DateOnly))
			if err != nil || !strings.Contains(out, "repetitions 0, users 3,") {
				t.Errorf("%s: verify: got %v\n%s", r.name, err, out)
			}
		}
	}
	check()
	const cut = `{"specversion":"1.0","id":"evt_` // as a crash leaves a line
	for _, r := range receivers {
		if r.duplicates == 0 {
			t.Errorf("%s: no request was repeated, want the one whose answer was lost", r.name)
		}
		if r.name == "stripe" && r.duplicates != 1 {
			t.Errorf("stripe: %d accepted meter events were sent again, want only the one whose answer was lost", r.duplicates)
		}
		r.kill()
		file, err := os.OpenFile(filepath.Join(r.dir, "received.ndjson"), os.O_WRONLY|os.O_APPEND, 0)
		f.Must(err)
		_, err = fmt.Fprintf(file, "\n%s", cut)
		f.Must(err)
		f.Must(file.Close())
		r.requests = 0
	}
	_, err = f.Service().RewindUsageFeed(t.Context(), f.account, core.HourOf(f.day))
	f.Must(err)
	for i, r := range receivers {
		r.start(string(f.hooks[i].Secrets[0].Value))
	}
	f.delivered()
	for _, r := range receivers {
		r.mu.Lock()
		if r.requests != 0 {
			t.Errorf("%s: the repeated events have caused %d requests, want none", r.name, r.requests)
		}
		r.mu.Unlock()
		path := filepath.Join(r.dir, "received.ndjson")
		text, err := os.ReadFile(path)
		f.Must(err)
		if !strings.HasSuffix(string(text), cut) {
			t.Errorf("%s: the file does not end with the cut line", r.name)
		}
		if out, err := f.usage("", "verify", "acme", "--received", path); err != nil || !strings.Contains(out, "are not JSON, as a crash of the receiver leaves them: 1.") {
			t.Errorf("%s: a cut line: got %v\n%s", r.name, err, out)
		}
	}
	check()

	setExternalID(core.Some("cus_bob"))
	_, err = f.Service().RewindUsageFeed(t.Context(), f.account, core.HourOf(f.day))
	f.Must(err)
	f.delivered()
	byCustomer["cus_bob requests"], byCustomer["cus_bob tokens"] = 8, 500
	check()
}
