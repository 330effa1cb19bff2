package command

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"

	"github.com/limitkeeper/limitkeeper/apply"
	"github.com/limitkeeper/limitkeeper/caddymodule"
	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/secrets"
	"github.com/limitkeeper/limitkeeper/core/service"
)

func init() { caddy.RegisterModule(new(AdminAPI)) }

// adminBase is the prefix of the paths of the admin API.
const adminBase = "/limitkeeper/"

// AdminAPI manages accounts and their resources, owner's keys, usage, the clock and the store on Caddy's admin endpoint,
// for the commands. Its routes are below /limitkeeper/.
//
// The admin endpoint already controls the whole server, so these routes need no credential of
// their own.
type AdminAPI struct{}

// CaddyModule implements [caddy.Module].
func (*AdminAPI) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "admin.api.limitkeeper", New: func() caddy.Module { return new(AdminAPI) }}
}

// adminRoutes maps method and path to the operation.
var adminRoutes = map[string]adminHandler{
	"GET accounts":           listAccounts,
	"POST accounts":          createAccount,                 // {"name"}
	"PATCH accounts":         ofAccount(updateAccount),      // ?account=NAME {"key_prefix"}
	"POST accounts/rename":   ofAnyAccount(renameAccount),   // ?account=NAME {"name"}
	"POST accounts/disable":  disableAccount(true),          // ?account=NAME
	"POST accounts/enable":   disableAccount(false),         // ?account=NAME
	"DELETE accounts":        ofAnyAccount(deleteAccount),   // ?account=NAME
	"GET keys":               ofAccount(listOwnerKeys),      // ?account=NAME
	"POST keys":              ofAccount(createOwnerKey),     // ?account=NAME {"name", "role", "expires_at"}
	"DELETE keys":            ofAccount(revokeOwnerKey),     // ?account=NAME&id=ID
	"POST regenerate":        ofAccount(regenerateOwnerKey), // ?account=NAME&id=ID {"grace_seconds"}
	"GET webhooks":           ofAccount(listWebhooks),       // ?account=NAME
	"POST webhooks":          ofAccount(createWebhook),      // ?account=NAME {"url", "events", "description"}
	"PATCH webhooks":         ofAccount(updateWebhook),      // ?account=NAME&id=ID {"is_active"}
	"DELETE webhooks":        ofAccount(deleteWebhook),      // ?account=NAME&id=ID
	"POST webhooks/rotate":   ofAccount(rotateWebhook),      // ?account=NAME&id=ID
	"POST webhooks/test":     testWebhook,                   // ?account=NAME&id=ID
	"POST sign-in":           makeSignInLink,                // ?account=NAME&origin=ORIGIN
	"POST usage":             ofAccount(adjustUsage),        // ?account=NAME&id=ID, of a key or user
	"GET usage":              reportUsage,                   // ?account=NAME&from=DAY&to=DAY&group_by=WORDS&format=csv|ndjson
	"GET usage/feed":         ofAccount(readUsageFeed),      // ?account=NAME
	"PUT usage/feed":         ofAccount(rewindUsageFeed),    // ?account=NAME {"next_hour"}
	"GET export":             exportArchive,                 // ?account=NAME&history=BOOL, of all accounts without a name
	"POST " + importPath:     importArchive,                 // checks; with ?sha256=… of the check it writes
	"POST " + applyPath:      applyFile,                     // ?account=NAME&dry_run=BOOL&prune=BOOL
	"POST " + importKeysPath: importKeys,                    // ?account=NAME&dry_run=BOOL
	"POST clock/accept":      acceptClock,
	"POST store/accept":      acceptLoss,
}

// Routes implements [caddy.AdminRouter].
func (a *AdminAPI) Routes() (routes []caddy.AdminRoute) {
	for route, handle := range adminRoutes {
		method, path, _ := strings.Cut(route, " ")
		routes = append(routes, caddy.AdminRoute{Pattern: method + " " + adminBase + path, Handler: handle})
	}
	return append(routes, caddy.AdminRoute{Pattern: adminBase, Handler: adminHandler(noOperation)})
}

// noOperation answers any other method or path.
func noOperation(_ *caddymodule.OpenStore, r *http.Request) (any, error) {
	for route := range adminRoutes {
		if _, path, _ := strings.Cut(route, " "); r.URL.Path == adminBase+path {
			return nil, caddy.APIError{HTTPStatus: http.StatusMethodNotAllowed, Err: fmt.Errorf("method %s is not allowed", r.Method)}
		}
	}
	return nil, caddy.APIError{HTTPStatus: http.StatusNotFound, Err: fmt.Errorf("there is no operation %s", r.URL.Path)}
}

// adminHandler runs an operation on the store of the running config. It returns the answer to encode as JSON, or a [stream].
type adminHandler func(running *caddymodule.OpenStore, r *http.Request) (any, error)

// ofAccount returns the handler of an operation on the account that the query names. do gets the id of the account.
func ofAccount(do func(s *service.Service, r *http.Request, account string) (any, error)) adminHandler {
	return func(running *caddymodule.OpenStore, r *http.Request) (any, error) {
		a, err := core.Usable(running.Service.OperatorAccount(r.Context(), r.URL.Query().Get("account")))
		if err != nil {
			return nil, err
		}
		return do(running.Service, r, a.ID)
	}
}

// stream writes the body of an answer.
type stream func(w io.Writer) error

// ServeHTTP implements [caddy.AdminHandler].
func (handle adminHandler) ServeHTTP(w http.ResponseWriter, r *http.Request) error {
	running, err := caddymodule.RunningStore()
	if err != nil {
		return adminError(err)
	}
	if r.Method == http.MethodHead { // net/http routes it as GET
		handle = noOperation
	}
	r.Body = bounded(w, r)
	r = r.WithContext(core.WithActor(r.Context(), actorIn(r)))
	answer, err := handle(running, r)
	if err != nil {
		return adminError(err)
	}
	w.Header().Set("Cache-Control", "no-store")
	if write, ok := answer.(stream); ok {
		w.Header().Set("Content-Type", "application/x-ndjson")
		return write(w)
	}
	w.Header().Set("Content-Type", "application/json")
	return json.NewEncoder(w).Encode(answer)
}

// bounded returns the body of a request with at most [apply.MaxSize] bytes. A file to import has any size, and is read line by line.
func bounded(w http.ResponseWriter, r *http.Request) io.ReadCloser {
	if path := strings.TrimPrefix(r.URL.Path, adminBase); path == importPath || path == importKeysPath {
		_ = http.NewResponseController(w).SetReadDeadline(time.Time{})
		return r.Body
	}
	return http.MaxBytesReader(w, r.Body, apply.MaxSize)
}

// adminError adds the HTTP status to an error of core.
func adminError(err error) error {
	e, ok := errors.AsType[*core.Error](err)
	if err == nil || !ok {
		return err
	}
	status := http.StatusBadRequest
	switch {
	case errors.Is(err, core.ErrAccountExists):
		status = http.StatusConflict
	case e.Code == core.CodeNotFound, e.Code == core.CodeUserNotFound, e.Code == core.CodeAPIKeyNotFound:
		status = http.StatusNotFound
	case e.Code == core.CodeUnavailable:
		status = http.StatusServiceUnavailable
	}
	text := e.Message
	if e.Detail != "" {
		text = e.Detail
	}
	if _, cause, ok := strings.Cut(err.Error(), core.ErrAccountNotFound.Error()+": "); ok {
		text += ": " + cause // the account is disabled or renamed
	}
	if _, cause, ok := strings.Cut(err.Error(), core.ErrUnavailable.Error()+": "); ok {
		text = secrets.MaskSecrets(cause) // for the operator, who may read the log too
	}
	return caddy.APIError{HTTPStatus: status, Err: errors.New(text)}
}

// badRequest returns an error with the HTTP status 400. It returns an error of core as it is, for [adminError].
func badRequest(err error) error {
	if _, ok := errors.AsType[*core.Error](err); ok {
		return err
	}
	return caddy.APIError{HTTPStatus: http.StatusBadRequest, Err: err}
}

// bodyOf decodes the body of a request. An empty body is the zero value.
func bodyOf[B any](r *http.Request, want string) (body B, err error) {
	if err := json.NewDecoder(r.Body).Decode(&body); err != nil && !errors.Is(err, io.EOF) {
		return body, badRequest(fmt.Errorf("body: want %s: %w", want, err))
	}
	return body, nil
}

// answer returns the answer with the view of a result.
func answer[T, V any](view func(T) V) func(T, error) (any, error) {
	return func(result T, err error) (any, error) {
		if err != nil {
			return nil, err
		}
		return view(result), nil
	}
}

// viewAll returns the views of the items on all pages, never nil.
func viewAll[T, V any](ctx context.Context, view func(T) V, list func(core.Page) ([]T, int, error)) ([]V, error) {
	views := []V{}
	err := core.Each(ctx, core.ReadSize, list, func(item T) error {
		views = append(views, view(item))
		return nil
	})
	return views, err
}

// Interface guards.
var _ caddy.AdminRouter = (*AdminAPI)(nil)
