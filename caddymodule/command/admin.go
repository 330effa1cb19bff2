package command

import (
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
)

func init() { caddy.RegisterModule(new(AdminAPI)) }

// adminBase is the prefix of the paths of the admin API.
const adminBase = "/limitkeeper/"

// maxAdminBody bounds a request body on the admin endpoint. A file to apply may be larger, see [apply.MaxSize].
const maxAdminBody = 64 << 10

// AdminAPI manages accounts and their resources, owner's keys, usage, the clock and the store on Caddy's admin endpoint,
// for the commands:
//
//	GET    /limitkeeper/accounts                list the accounts
//	POST   /limitkeeper/accounts                create one: {"name"}
//	PATCH  /limitkeeper/accounts?account=NAME   change one: {"key_prefix"}
//	GET    /limitkeeper/keys?account=NAME       list the owner's keys of an account
//	POST   /limitkeeper/keys?account=NAME       create one: {"name"}
//	DELETE /limitkeeper/keys?account=NAME&id=ID revoke one
//	POST   /limitkeeper/regenerate?account=NAME&id=ID replace one: {"grace_seconds"}
//	POST   /limitkeeper/sign-in?account=NAME    create a sign-in link
//	POST   /limitkeeper/usage?account=NAME&id=ID adjust the usage of a key or user
//	GET    /limitkeeper/export?account=NAME     an archive of one account, or of all
//	POST   /limitkeeper/import                  check an archive; with ?sha256=… of the check, write the archive
//	POST   /limitkeeper/apply?account=NAME&dry_run=BOOL&prune=BOOL apply a file
//	POST   /limitkeeper/import-keys?account=NAME&dry_run=BOOL import keys from CSV
//	POST   /limitkeeper/clock/accept            accept a clock jump
//	POST   /limitkeeper/store/accept            accept that Redis lost data
//
// The admin endpoint already controls the whole server, so these routes need no credential of
// their own.
type AdminAPI struct{}

// CaddyModule implements [caddy.Module].
func (*AdminAPI) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "admin.api.limitkeeper", New: func() caddy.Module { return new(AdminAPI) }}
}

// Routes implements [caddy.AdminRouter].
func (a *AdminAPI) Routes() []caddy.AdminRoute {
	return []caddy.AdminRoute{{Pattern: adminBase, Handler: caddy.AdminHandlerFunc(a.serve)}}
}

// adminHandler runs an operation on the store of the running config. It returns the answer to encode as JSON, or a [stream].
type adminHandler func(running *caddymodule.OpenStore, r *http.Request) (any, error)

// ofAccount returns the handler of an operation on the account that the query names. do gets the id of the account.
func ofAccount(do func(s *core.Service, r *http.Request, account string) (any, error)) adminHandler {
	return func(running *caddymodule.OpenStore, r *http.Request) (any, error) {
		a, err := running.Service.AccountByName(r.Context(), r.URL.Query().Get("account"))
		if err != nil {
			return nil, err
		}
		return do(running.Service, r, a.ID)
	}
}

// stream writes the body of an answer.
type stream func(w io.Writer) error

// adminRoutes maps path and method to the operation.
var adminRoutes = map[string]map[string]adminHandler{
	"accounts": {http.MethodGet: listAccounts, http.MethodPost: createAccount, http.MethodPatch: ofAccount(updateAccount)},
	"keys": {http.MethodGet: ofAccount(listOwnerKeys), http.MethodPost: ofAccount(createOwnerKey),
		http.MethodDelete: ofAccount(revokeOwnerKey)},

	"regenerate": {http.MethodPost: ofAccount(regenerateOwnerKey)},
	"sign-in":    {http.MethodPost: makeSignInLink},
	"usage":      {http.MethodPost: ofAccount(adjustUsage)},
	"export":     {http.MethodGet: exportArchive},
	importPath:   {http.MethodPost: importArchive},
	applyPath:    {http.MethodPost: applyFile},

	importKeysPath: {http.MethodPost: importKeys},

	"clock/accept": {http.MethodPost: acceptClock},
	"store/accept": {http.MethodPost: acceptLoss},
}

// serve runs the operation of a request and writes its result as JSON.
func (a *AdminAPI) serve(w http.ResponseWriter, r *http.Request) error {
	handle, err := adminRoute(r)
	if err != nil {
		return err
	}
	running, err := caddymodule.RunningStore()
	if err != nil {
		return adminError(err)
	}
	r.Body = bounded(w, r)
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

// bounded returns the body of a request, bounded by the most bytes that its route takes.
func bounded(w http.ResponseWriter, r *http.Request) io.ReadCloser {
	switch r.URL.Path {
	case adminBase + importPath, adminBase + importKeysPath: // a file has any size, and is read line by line
		_ = http.NewResponseController(w).SetReadDeadline(time.Time{})
		return r.Body
	case adminBase + applyPath:
		return http.MaxBytesReader(w, r.Body, apply.MaxSize)
	}
	return http.MaxBytesReader(w, r.Body, maxAdminBody)
}

// adminRoute returns the operation for the path and method of a request.
func adminRoute(r *http.Request) (adminHandler, error) {
	methods, ok := adminRoutes[strings.TrimPrefix(r.URL.Path, adminBase)]
	if !ok {
		return nil, caddy.APIError{HTTPStatus: http.StatusNotFound, Err: fmt.Errorf("no such path: %s", r.URL.Path)}
	}
	handle, ok := methods[r.Method]
	if !ok {
		return nil, caddy.APIError{HTTPStatus: http.StatusMethodNotAllowed, Err: fmt.Errorf("method %s is not allowed", r.Method)}
	}
	return handle, nil
}

// runningService returns the service of the running config.
func runningService() (*core.Service, error) {
	running, err := caddymodule.RunningStore()
	if err != nil {
		return nil, adminError(err)
	}
	return running.Service, nil
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
	if _, cause, ok := strings.Cut(err.Error(), core.ErrUnavailable.Error()+": "); ok {
		text = core.MaskSecrets(cause) // for the operator, who may read the log too
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

// nameIn returns the member "name" of a request body.
func nameIn(r *http.Request) (string, error) {
	var body struct {
		Name string `json:"name"`
	}
	err := readBody(r, &body, `{"name": …}`)
	return body.Name, err
}

// readBody decodes a request body into v. An empty body leaves v unchanged.
func readBody(r *http.Request, v any, want string) error {
	if err := json.NewDecoder(r.Body).Decode(v); err != nil && !errors.Is(err, io.EOF) {
		return caddy.APIError{HTTPStatus: http.StatusBadRequest, Err: fmt.Errorf("body: want %s: %w", want, err)}
	}
	return nil
}

// viewAll returns the views of the items on all pages, never nil.
func viewAll[T, V any](view func(T) V, list func(core.Page) ([]T, int, error)) ([]V, error) {
	views := []V{}
	for p := (core.Page{Number: 1, Size: 1000}); ; p.Number++ {
		items, _, err := list(p)
		if err != nil {
			return nil, err
		}
		for _, v := range items {
			views = append(views, view(v))
		}
		if len(items) < p.Size {
			return views, nil
		}
	}
}

// Interface guards.
var _ caddy.AdminRouter = (*AdminAPI)(nil)
