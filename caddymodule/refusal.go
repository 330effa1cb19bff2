package caddymodule

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/limitkeeper/limitkeeper/adminapi"
	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/service"
	"github.com/limitkeeper/limitkeeper/internal/exchange"
)

// Refusals without a decision.
var (
	errMissing  = &core.Error{Code: core.CodeUnauthorized, Message: "API key is required"}
	errNobody   = &core.Error{Code: core.CodeUnauthorized, Message: "The caller is not authenticated"}
	errNoUser   = &core.Error{Code: core.CodeKeyRestricted, Reason: core.ReasonUnknown, Message: "The caller is unknown", Field: "external_id"}
	errInternal = &core.Error{Code: core.CodeInternal, Message: "Internal server error"}
)

// refusal returns the status and the error of the answer to a refused request.
func (v *requestState) refusal() (int, *core.Error) {
	switch v.outcome {
	case outcomeMissing:
		if v.identifies {
			return http.StatusUnauthorized, errNobody
		}
		return http.StatusUnauthorized, errMissing
	case outcomeEarly:
		return http.StatusTooEarly, adminapi.ErrEarly
	case outcomeUnavailable:
		return http.StatusServiceUnavailable, core.ErrUnavailable
	case outcomeError:
		if e, ok := errors.AsType[bodyError](v.err); ok {
			return e.status(), e.err
		}
		if e, ok := errors.AsType[*core.Error](v.err); ok && e.Code == core.CodeInvalidRequest {
			return http.StatusBadRequest, e
		}
		if errors.Is(v.err, core.ErrTooManyHolds) {
			return http.StatusTooManyRequests, core.ErrTooManyHolds
		}
		return http.StatusInternalServerError, errInternal
	case string(service.Disabled), string(service.Restricted):
		return http.StatusForbidden, v.decision.Refusal()
	case string(service.Denied), string(service.OverRate), string(service.OverConcurrency):
		return http.StatusTooManyRequests, v.decision.Refusal()
	}
	if v.identifies { // authenticated, so that no other credentials would help
		return http.StatusForbidden, errNoUser
	}
	if v.ownerKey {
		e := *v.decision.Refusal()
		e.Message += ": this is an owner's key, for the REST API; the gateway takes the keys of users"
		return http.StatusUnauthorized, &e
	}
	return http.StatusUnauthorized, v.decision.Refusal()
}

// refuse answers a refused request, or returns the error for the error routes.
func (g *Gateway) refuse(w http.ResponseWriter, r *http.Request, v *requestState) error {
	status, e := v.refusal()
	h := w.Header()
	h.Set("Cache-Control", "no-store")
	switch status {
	case http.StatusUnauthorized:
		adminapi.SetChallenge(h, realm(r, g.Account), e.Code)
	case http.StatusServiceUnavailable:
		h.Set("Retry-After", "1")
	case http.StatusTooManyRequests:
		adminapi.SetRetryAfter(h, &v.decision, v.at)
	}
	v.headers.Set(h, &v.decision, v.at)
	if g.Errors {
		exchange.CloseUnread(w, r)
		return caddyhttp.Error(status, errors.New(e.Message))
	}
	exchange.AnswerUnread(w, r)
	switch {
	case strings.HasPrefix(r.Header.Get("Content-Type"), "application/grpc"):
		answerGRPC(w, status, e)
	case g.ErrorForm == formOpenAI:
		writeJSON(w, status, "application/json", openAIError(status, e, &v.decision))
	case g.ProblemJSON && strings.Contains(strings.ToLower(strings.Join(r.Header.Values("Accept"), ",")), problemType):
		writeJSON(w, status, problemType, v.problem(status, e))
	case v.decision.HasUsage():
		adminapi.WriteValidation(w, status, &v.decision, 0)
	default:
		adminapi.WriteRefusal(w, status, e)
	}
	return nil
}

// realm returns the protection space of a request (RFC 9110 section 11.5): the account, or the host for the default account.
func realm(r *http.Request, account string) string {
	if account == DefaultAccount {
		return r.Host
	}
	return account
}

// grpcStatuses are the statuses of gRPC for refusals: https://github.com/grpc/grpc/blob/master/doc/statuscodes.md. From the status of HTTP alone, a client
// derives UNAVAILABLE, and sends the request again.
var grpcStatuses = map[int]string{
	http.StatusBadRequest: "3", http.StatusUnauthorized: "16", http.StatusForbidden: "7", http.StatusTooEarly: "14",
	http.StatusTooManyRequests: "8", http.StatusServiceUnavailable: "14",
}

// answerGRPC answers with a status of gRPC in the header, without a message.
func answerGRPC(w http.ResponseWriter, status int, e *core.Error) {
	h := w.Header()
	h.Set("Content-Type", "application/grpc")
	h.Set("Grpc-Status", cmp.Or(grpcStatuses[status], "13"))
	h.Set("Grpc-Message", url.PathEscape(e.Message))
	w.WriteHeader(http.StatusOK)
}

// formOpenAI is the value of error_form for errors as the API of OpenAI has them.
const formOpenAI = "openai"

// openAIError returns an error in the form of the API of OpenAI. That API calls a limit of a minute or an hour a rate limit, and a limit of a longer
// period a quota.
func openAIError(status int, e *core.Error, d *service.Decision) any {
	kind, code, message := "invalid_request_error", strings.ToLower(string(e.Code)), e.Message
	switch {
	case d.NeverFits():
		message += fmt.Sprintf(": the request costs up to %d %s, and the limit is %d in the period %s", d.Needed, d.Meter, d.Max, d.Period)
	case e.Reason == core.ReasonQuota:
		message += fmt.Sprintf(": %d of %d %s used in the period %s", d.Used, d.Max, d.Meter, d.Period)
		if d.Used < d.Max {
			message += fmt.Sprintf(", and the request costs up to %d", d.Needed)
		}
		if end := d.Window.End; !end.IsZero() {
			message += ". The period ends at " + end.UTC().Format(time.RFC3339)
		}
	case e.Reason == core.ReasonConcurrency:
		message += ": send this one when one of the others has ended"
	}
	var param any
	if e.Field != "" {
		message, param = cmp.Or(e.Detail, e.Message), e.Field
	}
	switch {
	case e.Reason == core.ReasonQuota && d.Period != core.Minute && d.Period != core.Hour:
		kind, code = "insufficient_quota", "insufficient_quota"
	case status == http.StatusTooManyRequests:
		kind, code = "rate_limit_exceeded", "rate_limit_exceeded"
	case status == http.StatusUnauthorized:
		code = "invalid_api_key"
	case status >= http.StatusInternalServerError:
		kind = "server_error"
	}
	return map[string]any{"error": map[string]any{"message": message, "type": kind, "param": param, "code": code}}
}

// problemType is the type of the problem details of RFC 9457.
const problemType = "application/problem+json"

// problem returns the problem details of a refusal. The problem type quota-exceeded is that of draft-ietf-httpapi-ratelimit-headers-11.
func (v *requestState) problem(status int, e *core.Error) any {
	p := map[string]any{"type": "about:blank", "title": http.StatusText(status), "status": status, "detail": e.Message}
	if e.Code != "" {
		p["code"] = e.Code
	}
	if e.Reason != "" {
		p["reason"] = e.Reason
	}
	if status == http.StatusTooManyRequests {
		p["type"], p["title"] = "https://iana.org/assignments/http-problem-types#quota-exceeded", e.Message
		p["violated-policies"] = []string{adminapi.PolicyName(&v.decision)}
	}
	return p
}

func writeJSON(w http.ResponseWriter, status int, mediaType string, body any) {
	text, _ := json.Marshal(body) // texts and numbers can be marshalled
	adminapi.WriteBody(w, status, mediaType, text)
}
