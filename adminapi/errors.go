package adminapi

import (
	"errors"
	"fmt"
	"net/http"
	"runtime/debug"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/secrets"
	"github.com/limitkeeper/limitkeeper/internal/exchange"
)

// statuses maps each public code to its status. An error with another code is answered as an internal
// error.
var statuses = map[core.Code]int{
	core.CodeInvalidRequest:    http.StatusBadRequest,
	core.CodeValidation:        http.StatusBadRequest,
	core.CodeDuplicateEmail:    http.StatusBadRequest,
	core.CodeUnauthorized:      http.StatusUnauthorized,
	core.CodeInvalidAPIKey:     http.StatusUnauthorized,
	core.CodeForbidden:         http.StatusForbidden,
	core.CodeNotFound:          http.StatusNotFound,
	core.CodeUserNotFound:      http.StatusNotFound,
	core.CodePlanNotFound:      http.StatusNotFound,
	core.CodeAPIKeyNotFound:    http.StatusNotFound,
	core.CodeHoldNotFound:      http.StatusNotFound,
	core.CodeHoldExpired:       http.StatusConflict,
	core.CodeHoldSettled:       http.StatusConflict,
	core.CodeHoldReleased:      http.StatusConflict,
	core.CodeTooManyHolds:      http.StatusTooManyRequests,
	core.CodeMethodNotAllowed:  http.StatusMethodNotAllowed,
	core.CodeRateLimitExceeded: http.StatusTooManyRequests,
	core.CodeInternal:          http.StatusInternalServerError,
	core.CodeUnavailable:       http.StatusServiceUnavailable,
}

// retrySoon is the default Retry-After for 503 and 429.
const retrySoon = time.Second

// Errors of HTTP requests, which core does not have.
var (
	errPlainHTTP        = core.BadRequest("scheme", "Only HTTPS is accepted")
	errUnauthorized     = &core.Error{Code: core.CodeUnauthorized, Message: "Authentication required"}
	errNoBearer         = &core.Error{Code: core.CodeUnauthorized, Message: "Authentication required: send the owner's key in the field Authorization, after the word Bearer"}
	errUserKey          = &core.Error{Code: core.CodeInvalidAPIKey, Message: "Invalid API key: this looks like the key of a user; the REST API takes an owner's key, lk_ and 29 letters or digits"}
	errNotFound         = &core.Error{Code: core.CodeNotFound, Message: "Resource not found"}
	errMethodNotAllowed = &core.Error{Code: core.CodeMethodNotAllowed, Message: "Method not allowed"}
	errInternal         = &core.Error{Code: core.CodeInternal, Message: "Internal server error"}
)

// ErrEarly answers a request in early data, with the status 425.
var ErrEarly = &core.Error{Code: core.CodeInvalidRequest, Message: "Too early", Field: "early_data", Detail: "Send the request again after the TLS handshake"}

// faultFunc returns the constructor for errors about a member or parameter.
func (c *call) faultFunc() func(field, detail string) *core.Error {
	if c.validation {
		return core.BadRequest
	}
	return core.Invalid
}

func (c *call) fail(err error) {
	e := c.publicError(err)
	exchange.AnswerUnread(c.w, c.r)
	status := statuses[e.Code]
	if errors.Is(e, ErrEarly) {
		status = http.StatusTooEarly
	}
	switch status {
	case http.StatusUnauthorized:
		SetChallenge(c.w.Header(), apiRealm, e.Code)
	case http.StatusServiceUnavailable, http.StatusTooManyRequests:
		if c.w.Header().Get("Retry-After") == "" {
			retryAfter(c.w.Header(), retrySoon)
		}
	}
	if c.validation {
		WriteRefusal(c.w, status, e)
	} else {
		writeError(c.w, status, object{}.andError(e))
	}
}

// publicError returns the error for the client. It logs the cause if the client must not see it.
func (c *call) publicError(err error) *core.Error {
	e, ok := errors.AsType[*core.Error](err)
	ok = ok && statuses[e.Code] != 0
	switch {
	case ok && e.Code != core.CodeUnavailable:
		return e
	case errors.Is(err, c.ctx().Err()):
		return core.ErrUnavailable // the client has disconnected, which is the cause of err
	}
	if !c.public { // health checks are no requests of customers, and anyone can send them
		c.config.OnFault(err)
	}
	if !ok {
		c.log("request failed", err.Error())
		return errInternal
	}
	if !core.IsLogged(err) {
		c.log("store unavailable", err.Error())
	}
	return e
}

// log logs the cause of an error that the answer hides, in as many lines as [logthrottle.Throttle] admits.
func (c *call) log(msg, cause string) {
	suppressed, ok := c.faults.Admit(time.Now())
	if !ok {
		return
	}
	c.config.Logger.Error(msg, "request_id", c.ids[0],
		"route", c.r.Pattern, "method", c.r.Method, "error", secrets.MaskSecrets(cause), "suppressed", suppressed)
}

// recover answers a panic with 500. It re-panics http.ErrAbortHandler, which closes the connection.
func (c *call) recover() {
	switch v := recover(); v {
	case nil:
	case http.ErrAbortHandler:
		panic(v)
	default:
		c.log("handler panicked", fmt.Sprintf("%v\n%s", v, debug.Stack()))
		c.fail(errInternal)
	}
}
