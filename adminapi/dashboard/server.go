package dashboard

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"path"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
)

// Base is what every path of the dashboard begins with.
const Base = "/dashboard/"

// maxForm bounds the body of a form.
const maxForm = 64 << 10

// Config says how a [Server] is made. All members are required.
type Config struct {
	// Service returns the service that answers, or nil while its store is not open.
	Service func() *core.Service
	// Secure reports whether a request came over HTTPS.
	Secure func(*http.Request) bool
	// ClientIP returns the address that a request came from.
	ClientIP func(*http.Request) string
	// Logger gets the causes of 500 and 503, and each sign-in and refusal, never with a
	// secret: at most 60 lines a minute for each message and reason.
	Logger *slog.Logger
}

// Server answers what is below [Base]. It is safe for concurrent use.
type Server struct {
	config  Config
	limited *limitedLog
	mux     *http.ServeMux
	cross   *http.CrossOriginProtection
	results resultCache
}

// New returns a server.
func New(c Config) *Server {
	s := &Server{config: c, limited: newLimitedLog(c.Logger), mux: http.NewServeMux(), cross: http.NewCrossOriginProtection()}
	s.mux.HandleFunc("GET "+Base+"assets/{name}", asset)
	for pattern, h := range publicPages {
		s.mux.Handle(pattern, s.serve(h))
	}
	for pattern, h := range signedInPages {
		s.mux.Handle(pattern, s.serve(signedIn(h)))
	}
	for pattern, h := range formHandlers {
		s.mux.Handle("POST "+pattern, s.serve(signedIn(spendingToken(h))))
	}
	s.mux.Handle("/", s.serve(signedIn(func(*request) error { return errNotFound })))
	return s
}

// headers go with every answer: nothing is loaded from elsewhere, no script is in a page,
// no page is in a frame, and no address is told to another site. See CSP Level 3 and the
// Fetch Standard.
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

// handler answers one request, or returns the error to answer with; then it has written
// nothing.
type handler func(*request) error

// request is one request on its way through the dashboard.
type request struct {
	s   *Server
	w   http.ResponseWriter
	r   *http.Request
	svc *core.Service
	who *core.SignedIn // nil before someone is signed in
}

// account returns the id of the account that is signed in to.
func (q *request) account() string { return q.who.Account.ID }

// The faults that core does not have.
var (
	errNotFound    = &core.Error{Code: core.CodeNotFound, Message: "There is no such page"}
	errPlainHTTP   = &core.Error{Code: core.CodeInvalidRequest, Message: "The dashboard is served over HTTPS only"}
	errCrossOrigin = &core.Error{Code: core.CodeInvalidRequest, Message: "This form was sent from another site"}
	errThrottled   = &core.Error{Code: core.CodeRateLimitExceeded, Message: "This account asks for too many pages: please wait a minute"}
	errTooLong     = &core.Error{Code: core.CodeInvalidRequest, Message: "The form is too long"}
	errUnreadable  = &core.Error{Code: core.CodeInvalidRequest, Message: "The form cannot be read"}
)

// serve does what comes before every handler, and writes the error that it returns.
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
	if q.r.Method == http.MethodPost {
		q.r.Body = http.MaxBytesReader(q.w, q.r.Body, maxForm)
		if err := q.r.ParseForm(); err != nil {
			if _, tooLong := errors.AsType[*http.MaxBytesError](err); tooLong {
				return errTooLong
			}
			return errUnreadable
		}
	}
	if q.svc = q.s.config.Service(); q.svc == nil {
		return core.ErrUnavailable
	}
	return h(q)
}

// signedIn runs a handler for who is signed in, and sends everyone else to sign in.
func signedIn(h handler) handler {
	return func(q *request) (err error) {
		if q.who, err = q.session(!q.live()); err != nil {
			return err
		}
		if wait, ok := q.svc.AdmitPage(q.bucket()); !ok {
			q.retryAfter(wait)
			return errThrottled
		}
		uri := q.r.URL.RequestURI()
		if clean := core.MaskSecrets(uri); clean != uri && q.r.Method == http.MethodGet && q.r.URL.Path != Base+"keys" {
			return q.redirect(strings.TrimPrefix(clean, Base)) // a secret is not to stay in an address
		}
		return h(q)
	}
}

// endsAccess are the pages and forms by which an account takes access back.
var endsAccess = map[string]bool{
	Base + "settings": true, Base + "settings/password": true, Base + "sign-out": true, Base + "sign-out-everywhere": true,
}

// bucket returns what the request counts for in the page throttle. A session that asks for as
// many pages as it can must not keep the other sessions of its account from ending it.
func (q *request) bucket() string {
	switch {
	case endsAccess[q.r.URL.Path]:
		return q.account() + " session " + string(q.who.Session.Digest[:])
	case q.live():
		return q.account() + " live"
	}
	return q.account()
}

// spendingToken runs a handler for a form that was not sent before.
func spendingToken(h handler) handler {
	return func(q *request) error {
		if err := q.svc.SpendFormToken(q.r.Context(), q.who, q.r.PostForm.Get("form")); err != nil {
			return err
		}
		return h(q)
	}
}

// redirect sends the browser on to a page below Base, also when a part of one was asked for.
func (q *request) redirect(page string) error {
	if q.r.Header.Get("HX-Request") != "" {
		q.w.Header().Set("HX-Redirect", Base+page)
		return nil
	}
	http.Redirect(q.w, q.r, Base+page, http.StatusSeeOther)
	return nil
}

// statuses is the status of every code. Another code is a fault of this server.
var statuses = map[core.Code]int{
	core.CodeInvalidRequest:    http.StatusBadRequest,
	core.CodeValidation:        http.StatusBadRequest,
	core.CodeDuplicateEmail:    http.StatusBadRequest,
	core.CodeNotFound:          http.StatusNotFound,
	core.CodeUserNotFound:      http.StatusNotFound,
	core.CodePlanNotFound:      http.StatusNotFound,
	core.CodeAPIKeyNotFound:    http.StatusNotFound,
	core.CodeRateLimitExceeded: http.StatusTooManyRequests,
	core.CodeUnavailable:       http.StatusServiceUnavailable,
}

// fail answers with an error.
func (q *request) fail(err error) {
	if errors.Is(err, core.ErrSession) {
		q.askToSignIn()
		return
	}
	e, ok := errors.AsType[*core.Error](err)
	status := http.StatusInternalServerError
	switch {
	case errors.Is(err, errCrossOrigin):
		status = http.StatusForbidden
	case errors.Is(err, errTooLong):
		status = http.StatusRequestEntityTooLarge
	case ok && statuses[e.Code] != 0:
		status = statuses[e.Code]
	}
	if status >= 500 && q.r.Context().Err() == nil && !core.IsLogged(err) {
		q.log(slog.LevelError, "dashboard request failed", slog.Int("status", status), func() []slog.Attr {
			return []slog.Attr{slog.String("path", core.MaskSecrets(q.r.URL.Path)), slog.String("method", q.r.Method), slog.String("error", core.MaskSecrets(err.Error()))}
		})
	}
	text := "Something went wrong here, and the log of the server says what"
	switch {
	case errors.Is(err, core.ErrBusy):
		q.retryAfter(retryBusy)
		text = core.ErrBusy.Message
	case status == http.StatusServiceUnavailable:
		q.w.Header().Set("Retry-After", "1")
		text = "The store cannot be reached: please try again in a moment"
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
	q.w.Header().Set("Retry-After", strconv.FormatInt(core.WholeSeconds(wait), 10))
}

// recover answers a panic with 500. One that gives up the connection is handed on.
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
