package dashboard

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"path"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/secrets"
	"github.com/limitkeeper/limitkeeper/core/service"
	"github.com/limitkeeper/limitkeeper/core/signin"
	"github.com/limitkeeper/limitkeeper/internal/exchange"
)

// Base is the prefix of all paths of the dashboard.
const Base = "/dashboard/"

// The maximum size of a form, and of the form that signs in, in bytes.
const (
	maxForm   = 64 << 10
	maxSignIn = 8 << 10
)

// Config is the configuration of a [Server]. All members are required.
type Config struct {
	// Service returns the service, or nil while its store is not open.
	Service func() *service.Service
	// Secure reports whether a request came over HTTPS.
	Secure func(*http.Request) bool
	// ClientIP returns the address of the client.
	ClientIP func(*http.Request) string
	// Email returns the email that the server has authenticated for the request, "" for none. The person with this email signs in without a
	// password.
	Email func(*http.Request) string
	// Account is the account of a sign-in by Email. If it is "", the form asks for the name of the account.
	Account string
	// TestWebhook sends a test to a webhook, and returns the attempt.
	TestWebhook func(ctx context.Context, account, id string) (*core.Attempt, error)
	// Logger gets the causes of 500 and 503 answers, and each sign-in and refusal: at most 60 lines
	// a minute for each message and reason, and never a secret.
	Logger *slog.Logger
}

// Server serves the paths below [Base]. It is safe for concurrent use.
type Server struct {
	config    Config
	mux       *http.ServeMux
	cross     *http.CrossOriginProtection
	results   resultCache
	throttles sync.Map // of log lines: a *logthrottle.Throttle for each message and reason

	forms, signIns exchange.Bytes // that are being read
	signInBlocks   exchange.Bytes // the same sign-ins, by block: see core.NetworksOf
	answers        exchange.Bytes // that are being written

	strangerAnswers exchange.Bytes // to clients that are not signed in
}

// New returns a server.
func New(c Config) *Server {
	s := &Server{config: c,
		forms:   exchange.Bytes{All: 16 << 20, Each: 1 << 20, Least: maxSignIn},
		signIns: exchange.Bytes{All: 32 << 20, Each: 16 * maxSignIn, Least: maxSignIn},
		answers: exchange.Bytes{All: 32 << 20, Each: 4 << 20},

		strangerAnswers: exchange.Bytes{All: 16 << 20, Each: 1 << 20},

		signInBlocks: exchange.Bytes{All: 32 << 20, Each: 256 * maxSignIn},
		mux:          http.NewServeMux(), cross: http.NewCrossOriginProtection()}
	s.mux.HandleFunc("GET "+Base+"assets/{name}", asset)
	s.mux.Handle("GET "+Base+"sign-in", s.serve(signInPage))
	s.mux.Handle("POST "+Base+"sign-in", s.serve(signIn))
	for pattern, rt := range newRoutes() {
		method, page, _ := strings.Cut(pattern, " ")
		h := rt.handle
		if method == http.MethodPost {
			h = spendingToken(h)
		}
		s.mux.Handle(method+" "+Base+page, s.serve(signedIn(permitting(rt.need, h))))
	}
	s.mux.Handle("/", s.serve(signedIn(func(*request) error { return errNotFound })))
	return s
}

// headers are the security headers on every answer: no resources from other sites, no inline scripts,
// no frames, no referrers. See CSP Level 3 and the Fetch Standard.
var headers = map[string]string{
	"Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
		"form-action 'self'; frame-ancestors 'none'; base-uri 'none'",
	"Cross-Origin-Opener-Policy":   "same-origin",
	"Cross-Origin-Resource-Policy": "same-origin",
	"Permissions-Policy":           "camera=(), geolocation=(), microphone=()",
	"Referrer-Policy":              "no-referrer",
	"X-Content-Type-Options":       "nosniff",
	"X-Frame-Options":              "DENY",
	"Cache-Control":                "no-store",
}

// ServeHTTP implements [http.Handler].
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	for name, value := range headers {
		w.Header().Set(name, value)
	}
	// ServeMux would redirect a path that is not clean.
	if p := r.URL.EscapedPath(); path.Clean(p) != p && path.Clean(p)+"/" != p {
		s.serve(func(*request) error { return errNotFound }).ServeHTTP(w, r)
		return
	}
	s.mux.ServeHTTP(w, r)
}

// handler answers one request, or writes nothing and returns the error to answer with.
type handler func(*request) error

type request struct {
	s        *Server
	w        http.ResponseWriter
	r        *http.Request
	svc      *service.Service
	signedIn *signin.SignedIn // nil without a session
}

// account returns the id of the account of the session.
func (q *request) account() string { return q.signedIn.Account.ID }

// Errors of HTTP requests, which core does not have.
var (
	errNotFound    = &core.Error{Code: core.CodeNotFound, Message: "There is no such page"}
	errPlainHTTP   = &core.Error{Code: core.CodeInvalidRequest, Message: "The dashboard is served over HTTPS only"}
	errCrossOrigin = &core.Error{Code: core.CodeInvalidRequest, Message: "This form was sent from another site"}
	errThrottled   = &core.Error{Code: core.CodeRateLimitExceeded, Message: "Too many pages requested for this account: please wait a minute"}
	errTooLong     = &core.Error{Code: core.CodeInvalidRequest, Message: "The form is too long"}
	errEarly       = &core.Error{Code: core.CodeInvalidRequest, Message: "The form came before the TLS handshake ended: please send it again"}
	errBusy        = &core.Error{Code: core.CodeUnavailable, Message: "Too many forms are being sent: please try again in a moment"}
	errBusyReader  = &core.Error{Code: core.CodeUnavailable, Message: "Too many pages of this account are being loaded: please try again in a moment"}
	errUnreadable  = &core.Error{Code: core.CodeInvalidRequest, Message: "The form cannot be read"}
)

// serve returns the HTTP handler for h: it runs the checks and h, and writes their error.
func (s *Server) serve(h handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		q := &request{s: s, w: w, r: r}
		defer q.recover()
		if err := q.serve(h); err != nil {
			q.fail(err)
		}
	})
}

func (q *request) serve(h handler) error {
	if !q.s.config.Secure(q.r) {
		return errPlainHTTP
	}
	if err := q.s.cross.Check(q.r); err != nil {
		return errCrossOrigin
	}
	if q.r.Method == http.MethodPost && exchange.Early(q.r) {
		return errEarly
	}
	if q.svc = q.s.config.Service(); q.svc == nil {
		return core.ErrUnavailable
	}
	return h(q)
}

// readForm reads the posted form. The caller has admitted the client: until the form is complete its bytes count for owner.
func (q *request) readForm(forms *exchange.Bytes, owner string, most int64) error {
	var body exchange.Body
	err := forms.ReadBody(&body, q.w, q.r, owner, most)
	if _, tooLong := errors.AsType[*http.MaxBytesError](err); tooLong {
		return errTooLong
	}
	if errors.Is(err, exchange.ErrBusy) {
		return errBusy
	}
	if err != nil {
		return errUnreadable // the body stays: its rest has not come, and fail closes the connection
	}
	q.r.Body = io.NopCloser(&body)
	err = q.r.ParseForm()
	q.r.Body = http.NoBody // fail closes no connection
	if err != nil {
		return errUnreadable
	}
	return nil
}

// signedIn requires a session: requests without one are redirected to the sign-in page.
func signedIn(h handler) handler {
	return func(q *request) (err error) {
		if q.signedIn, err = q.session(!q.live()); err != nil {
			return err
		}
		if wait, ok := q.svc.AdmitPage(q.throttled()); !ok {
			q.retryAfter(wait)
			return errThrottled
		}
		q.acting()
		uri := q.r.URL.RequestURI()
		if secrets.HoldsSecret(uri) && q.r.Method == http.MethodGet && q.r.URL.Path != Base+"keys" {
			return q.redirect(strings.TrimPrefix(secrets.MaskSecrets(uri), Base)) // a secret must not stay in the address
		}
		return h(q)
	}
}

// endsAccess are the paths that end sessions or change the password.
var endsAccess = map[string]bool{
	Base + "settings": true, Base + "settings/password": true, Base + "sign-out": true, Base + "sign-out-everywhere": true,
}

// throttled returns what the page throttle counts the request for. It counts the paths in endsAccess
// for each session apart, so a session that floods the account cannot prevent others from ending it.
func (q *request) throttled() string {
	switch {
	case endsAccess[q.r.URL.Path], strings.HasPrefix(q.r.URL.Path, Base+"sessions/"):
		return q.account() + " session " + string(q.signedIn.Session.Digest[:])
	case q.live():
		return q.account() + " live"
	}
	return q.account()
}

// spendingToken requires an unused form token and marks it as used.
func spendingToken(h handler) handler {
	return func(q *request) error {
		if err := q.readForm(&q.s.forms, q.account(), maxForm); err != nil {
			return err
		}
		if err := q.svc.SignIn.SpendFormToken(q.r.Context(), q.signedIn, q.r.PostForm.Get("form")); err != nil {
			return err
		}
		return h(q)
	}
}

// redirect redirects to a page below Base, for page loads and for htmx refreshes.
func (q *request) redirect(page string) error {
	if q.r.Header.Get("HX-Request") != "" {
		q.w.Header().Set("HX-Redirect", Base+page)
		return nil
	}
	http.Redirect(q.w, q.r, Base+page, http.StatusSeeOther)
	return nil
}

// ownStatuses are the statuses of errors whose codes have another one.
var ownStatuses = map[*core.Error]int{
	errCrossOrigin: http.StatusForbidden,
	errEarly:       http.StatusTooEarly,
	errTooLong:     http.StatusRequestEntityTooLarge,
}

// statuses maps each public code to its status. Other codes are answered with 500.
var statuses = map[core.Code]int{
	core.CodeInvalidRequest:    http.StatusBadRequest,
	core.CodeValidation:        http.StatusBadRequest,
	core.CodeDuplicateEmail:    http.StatusBadRequest,
	core.CodeForbidden:         http.StatusForbidden,
	core.CodeNotFound:          http.StatusNotFound,
	core.CodeUserNotFound:      http.StatusNotFound,
	core.CodePlanNotFound:      http.StatusNotFound,
	core.CodeAPIKeyNotFound:    http.StatusNotFound,
	core.CodeRateLimitExceeded: http.StatusTooManyRequests,
	core.CodeUnavailable:       http.StatusServiceUnavailable,
}

func (q *request) fail(err error) {
	exchange.AnswerUnread(q.w, q.r)
	if errors.Is(err, signin.ErrSession) {
		q.askToSignIn()
		return
	}
	e, ok := errors.AsType[*core.Error](err)
	canceled := errors.Is(err, q.r.Context().Err()) // the client has disconnected, which is the cause of err
	status := cmp.Or(ownStatuses[e], statuses[core.ErrorCode(err)])
	switch {
	case status == 0 && canceled:
		status = http.StatusServiceUnavailable
	case status == 0:
		status = http.StatusInternalServerError
	}
	busy := errors.Is(err, errBusy) || errors.Is(err, errBusyReader)
	if status >= 500 && !canceled && !busy && !core.IsLogged(err) {
		q.log(slog.LevelError, "dashboard request failed", slog.Int("status", status), func() []slog.Attr {
			return []slog.Attr{slog.String("path", secrets.MaskSecrets(q.r.URL.Path)), slog.String("method", q.r.Method), slog.String("error", secrets.MaskSecrets(err.Error()))}
		})
	}
	wait := time.Second
	if errors.Is(err, signin.ErrBusy) {
		busy, wait = true, retryBusy
	}
	if status == http.StatusServiceUnavailable {
		q.retryAfter(wait)
	}
	text := "Internal error. The server log has the cause"
	switch {
	case status == http.StatusServiceUnavailable && !busy:
		text = "The store is unavailable: please try again in a moment"
	case ok && e.Detail != "":
		text = e.Detail
	case ok && status != http.StatusInternalServerError:
		text = e.Message
	}
	if err := q.render(status, "error", "Error", struct {
		Status int
		Text   string
	}{status, text}); err != nil {
		http.Error(q.w, text, status)
	}
}

// retryAfter sets Retry-After, in whole seconds rounded up.
func (q *request) retryAfter(wait time.Duration) {
	q.w.Header().Set("Retry-After", strconv.FormatInt(service.WholeSeconds(wait), 10))
}

// recover answers a panic with 500. It re-panics http.ErrAbortHandler, which closes the connection.
func (q *request) recover() {
	v := recover()
	if v == nil {
		return
	}
	if v == http.ErrAbortHandler {
		panic(v)
	}
	q.fail(fmt.Errorf("panic: %v\n%s", v, debug.Stack()))
}

var _ http.Handler = (*Server)(nil)
