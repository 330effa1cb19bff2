package webhook

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/limitkeeper/limitkeeper/core"
)

// The bounds of a request to a receiver.
const (
	DefaultTimeout  = 15 * time.Second // of a request, up to the end of its answer
	maxAnswerBody   = 16 << 10         // bytes. The body of the answer is read so that the connection can be used again
	maxAnswerHeader = 32 << 10         // bytes
	idleTimeout     = 30 * time.Second // an idle connection is closed after this time
	maxIdle         = 100              // idle connections
)

// Sender sends events to receivers. It is safe for concurrent use.
type Sender struct {
	userAgent    string
	timeout      time.Duration
	allowPrivate atomic.Bool

	// Two clients with separate connections: a connection from the time when private addresses were allowed is never used after they are forbidden.
	unrestricted, publicOnly http.Client
}

// NewSender returns a sender. The timeout bounds a request up to the end of its answer; 0 means [DefaultTimeout].
func NewSender(userAgent string, timeout time.Duration) *Sender {
	s := &Sender{userAgent: userAgent, timeout: timeout}
	if timeout <= 0 {
		s.timeout = DefaultTimeout
	}
	s.unrestricted, s.publicOnly = newClient(s.timeout, nil), newClient(s.timeout, refusePrivate)
	return s
}

// newClient returns a client that calls control before each connection, unless control is nil. The timeout also bounds the dial and the TLS handshake,
// which net/http continues after the request has ended.
func newClient(timeout time.Duration, control func(context.Context, string, string, syscall.RawConn) error) http.Client {
	dialer := net.Dialer{Timeout: timeout, ControlContext: control}
	return http.Client{
		Transport: &http.Transport{ // without a proxy: it would connect to addresses that control does not see
			DialContext: dialer.DialContext, TLSHandshakeTimeout: timeout, ForceAttemptHTTP2: true, DisableCompression: true, MaxResponseHeaderBytes: maxAnswerHeader,
			MaxIdleConns: maxIdle, MaxIdleConnsPerHost: maxPerWebhook, IdleConnTimeout: idleTimeout,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }, // a redirect could lead to a private address
	}
}

// SetAllowPrivate sets whether the sender connects to addresses that are not public: the option webhook_allow_private.
func (s *Sender) SetAllowPrivate(allow bool) {
	if s.allowPrivate.Swap(allow) && !allow {
		s.unrestricted.CloseIdleConnections()
	}
}

// Close closes the idle connections.
func (s *Sender) Close() {
	s.unrestricted.CloseIdleConnections()
	s.publicOnly.CloseIdleConnections()
}

var errPrivate = errors.New("the address is not public")

// refusePrivate refuses a connection to an address that is not public. The dialer calls it after it has resolved the name.
func refusePrivate(_ context.Context, _, address string, _ syscall.RawConn) error {
	a, err := netip.ParseAddrPort(address)
	if err != nil || !core.IsPublic(a.Addr()) {
		return errPrivate
	}
	return nil
}

// body is the body of a delivery. It has the members type, timestamp and data of Standard Webhooks, and the members of a CloudEvents 1.0 event in JSON:
// https://github.com/cloudevents/spec/blob/v1.0.2/cloudevents/formats/json-format.md.
type body struct {
	SpecVersion string         `json:"specversion"`
	ID          string         `json:"id"`
	Source      string         `json:"source"` // unique for the account
	Type        string         `json:"type"`
	Subject     string         `json:"subject,omitempty"`
	Time        time.Time      `json:"time"`
	Timestamp   time.Time      `json:"timestamp"` // the same as Time
	Data        jsontext.Value `json:"data"`
}

// Result is the result of a request.
type Result struct {
	Status  int           // the status of the answer; 0 without an answer
	Problem string        // for the owner of the webhook, without details of the server's network; "" for an answer of 200 to 299
	Cause   error         // why there is no answer, for the operator
	Took    time.Duration // of the request
}

// Send sends an event to a webhook. now is the time of the signature.
func (s *Sender) Send(ctx context.Context, w *core.Webhook, e *core.Event, now time.Time) Result {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	began := time.Now()
	status, err := s.send(ctx, w, e, now)
	return Result{status, s.problem(status, err), err, time.Since(began)}
}

func (s *Sender) send(ctx context.Context, w *core.Webhook, e *core.Event, now time.Time) (status int, err error) {
	text, err := deliveryBody(w.AccountID, e)
	if err != nil {
		return 0, err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, w.URL, bytes.NewReader(text))
	if err != nil {
		return 0, errors.New("the URL cannot be read") // err contains the URL, which may contain a secret
	}
	signature, err := sign(w, e.ID, now, text)
	if err != nil {
		return 0, err
	}
	r.Header = http.Header{
		"Content-Type": {"application/json"}, "User-Agent": {s.userAgent},
		"Webhook-Id": {e.ID}, "Webhook-Timestamp": {fmt.Sprint(now.Unix())}, "Webhook-Signature": {signature},
	}
	client := &s.publicOnly
	if s.allowPrivate.Load() {
		client = &s.unrestricted
	}
	answer, err := client.Do(r)
	if err != nil {
		return 0, withoutURL(err)
	}
	defer answer.Body.Close()
	if answer.StatusCode == http.StatusSwitchingProtocols {
		return answer.StatusCode, nil // the body is the connection: the end of ctx does not end a read of it
	}
	_, err = io.CopyN(io.Discard, answer.Body, maxAnswerBody)
	if errors.Is(err, io.EOF) || err == nil || answer.StatusCode >= 300 {
		return answer.StatusCode, nil
	}
	return 0, withoutURL(err) // the answer is a success, and its body was cut
}

// deliveryBody returns the body of the deliveries of an event. Each delivery of an event has the same body.
func deliveryBody(account string, e *core.Event) ([]byte, error) {
	at := e.At.UTC()
	b := body{"1.0", e.ID, core.EventSource(account), e.Type, e.Subject, at, at, e.Data}
	if b.Data == nil {
		b.Data = jsontext.Value("{}")
	}
	return json.Marshal(b)
}

// sign returns the signatures of a body, one for each secret of the webhook, with spaces between them.
func sign(w *core.Webhook, id string, now time.Time, text []byte) (signatures string, err error) {
	for _, secret := range w.Signing(now) {
		signer, err := standardwebhooks.NewWebhook(string(secret))
		if err != nil {
			return "", errors.New("the secret of the webhook cannot be read") // err may contain the secret
		}
		signature, err := signer.Sign(id, now, text)
		if err != nil {
			return "", err
		}
		if signatures != "" {
			signatures += " "
		}
		signatures += signature
	}
	return signatures, nil
}

// problem returns the text that the owner of a webhook sees. All failures of connections have the same text. Different texts would show which names and
// ports exist in the private network.
func (s *Sender) problem(status int, err error) string {
	switch {
	case status >= 200 && status < 300:
		return ""
	case status >= 300 && status < 400:
		return fmt.Sprintf("The receiver has answered %d: redirects are not followed", status)
	case status != 0:
		return fmt.Sprintf("The receiver has answered %d", status)
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Sprintf("The receiver has not answered within %v", s.timeout)
	}
	return "No answer: the connection to the receiver has failed"
}

// withoutURL returns an error of net/http without the URL, which may contain a secret.
func withoutURL(err error) error {
	if e, ok := errors.AsType[*url.Error](err); ok {
		return e.Err
	}
	return err
}
