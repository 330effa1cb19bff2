package webhook_test

import (
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/webhook"
)

// sendTo sends an event to a URL.
func sendTo(t testing.TB, s *webhook.Sender, url string) webhook.Result {
	w := &core.Webhook{ID: "wh_1", URL: url, Secrets: []core.WebhookSecret{{Value: "whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIz"}}}
	return s.Send(t.Context(), w, &core.Event{ID: "evt_1", Type: "x"}, time.Now())
}

// A request ends after its timeout, although the receiver sends an endless answer or switches protocols.
func TestEndlessAnswers(t *testing.T) {
	for name, answer := range map[string]string{
		"switching protocols":   "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n",
		"no end of the body":    "HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nx",
		"no end of the header":  "HTTP/1.1 200 OK\r\nA: ",
		"informational answers": strings.Repeat("HTTP/1.1 103 Early Hints\r\n\r\n", 1000),
		"no end of the trailer": "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nA: ",
	} {
		t.Run(name, func(t *testing.T) {
			l := listen(t, func(c net.Conn) {
				_, _ = io.WriteString(c, answer)
				_, _ = io.Copy(io.Discard, c)
			})
			s := webhook.NewSender("Limitkeeper/test", 200*time.Millisecond)
			s.SetAllowPrivate(true)
			result := make(chan webhook.Result, 1)
			go func() { result <- sendTo(t, s, "http://"+l.Addr().String()) }()
			select {
			case r := <-result:
				if r.Problem == "" {
					t.Errorf("got %+v, want a problem", r)
				}
			case <-time.After(10 * time.Second):
				t.Fatal("the request does not end")
			}
		})
	}
}

// A connection is closed if the receiver does not answer the TLS handshake.
func TestSilentHandshake(t *testing.T) {
	ended := make(chan error, 1)
	l := listen(t, func(c net.Conn) {
		_, err := io.Copy(io.Discard, c)
		ended <- err
	})
	s := webhook.NewSender("Limitkeeper/test", 200*time.Millisecond)
	s.SetAllowPrivate(true)
	if r := sendTo(t, s, "https://"+l.Addr().String()); r.Problem == "" {
		t.Errorf("got %+v, want a problem", r)
	}
	select {
	case <-ended:
	case <-time.After(10 * time.Second):
		t.Error("the connection stays open")
	}
}

// After private addresses are forbidden, an open connection to a private address is not used again.
func TestForbidWhileConnected(t *testing.T) {
	s := webhook.NewSender("Limitkeeper/test", 5*time.Second)
	s.SetAllowPrivate(true)
	r := newReceiver(t)
	asked, answer := make(chan struct{}), make(chan struct{})
	r.answers(func(w http.ResponseWriter, _ *http.Request, _ string) {
		asked <- struct{}{}
		<-answer
		w.WriteHeader(http.StatusOK)
	})
	done := make(chan webhook.Result)
	go func() { done <- sendTo(t, s, r.URL) }()
	<-asked
	s.SetAllowPrivate(false)
	sendTo(t, s, "http://127.0.0.1:1") // after a request, net/http keeps idle connections again
	close(answer)
	if got := <-done; got.Problem != "" {
		t.Fatalf("the request that began before: got %+v", got)
	}
	r.answers(func(w http.ResponseWriter, _ *http.Request, _ string) { w.WriteHeader(http.StatusOK) })
	if got := sendTo(t, s, r.URL); got.Status != 0 {
		t.Errorf("got %+v, want no connection to a private address", got)
	}
}

// listen serves each connection by fn until the test ends.
func listen(t testing.TB, fn func(net.Conn)) net.Listener {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				fn(c)
			}()
		}
	}()
	return l
}
