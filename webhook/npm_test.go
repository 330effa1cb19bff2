package webhook_test

import (
	"bytes"
	"encoding/json"
	"net/http"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
)

// The JavaScript library of Standard Webhooks verifies a delivery, and refuses it with another body, time or secret. The library of CloudEvents reads the
// delivery as an event.
func TestVerifiedByJavaScript(t *testing.T) {
	const folder = "../caddymodule/testdata/sdk"
	if _, err := os.Stat(folder + "/node_modules/standardwebhooks"); err != nil {
		t.Fatalf("%v: `make tools` installs it", err)
	}
	e, r := newEnv(t), newReceiver(t)
	e.clock.Pass(time.Since(e.clock.Wall())) // the library refuses old deliveries
	w := e.webhook(r)
	var mu sync.Mutex
	headers := map[string]string{}
	r.answers(func(w http.ResponseWriter, req *http.Request, _ string) {
		mu.Lock()
		defer mu.Unlock()
		for _, name := range []string{"webhook-id", "webhook-timestamp", "webhook-signature"} {
			headers[name] = req.Header.Get(name)
		}
		w.WriteHeader(http.StatusNoContent)
	})
	id := e.put("key_1", 1, 1)[0]
	e.until("the delivery", 0, func() bool { return e.pending(w) == 0 })
	mu.Lock()
	defer mu.Unlock()
	r.mu.Lock()
	defer r.mu.Unlock()
	input, err := json.Marshal(map[string]any{"secret": string(w.Secrets[0].Value), "headers": headers, "body": r.bodies[id]})
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("node", "webhook.mjs")
	cmd.Dir, cmd.Stdin = folder, bytes.NewReader(input)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("node: %v: %s", err, out)
	}
	var got struct {
		Type    string
		Refused []string
		Event   struct {
			ID, Source, Type, Subject string
			Time                      time.Time
		}
	}
	if err := json.Unmarshal(out, &got); err != nil || got.Type != core.EventThreshold || len(got.Refused) != 3 {
		t.Errorf("the library has answered %s, %v, want the type of the event and three refusals", out, err)
	}
	if ev := got.Event; ev.ID != id || ev.Source != "/limitkeeper/accounts/"+e.account || ev.Type != core.EventThreshold || ev.Subject != "key_1" || ev.Time.IsZero() {
		t.Errorf("got the event %+v, want the id %s and the account %s", ev, id, e.account)
	}
}
