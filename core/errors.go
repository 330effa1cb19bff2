package core

import (
	"errors"
	"fmt"
)

// Code is a machine-readable name of an error, as in the wire contract.
type Code string

// The codes of the wire contract.
const (
	CodeUnauthorized      Code = "UNAUTHORIZED"
	CodeInvalidAPIKey     Code = "INVALID_API_KEY"
	CodeForbidden         Code = "FORBIDDEN"
	CodeAPIKeyNotFound    Code = "API_KEY_NOT_FOUND"
	CodeAPIKeyDisabled    Code = "API_KEY_DISABLED"
	CodeKeyRestricted     Code = "KEY_RESTRICTED"
	CodeInvalidRequest    Code = "INVALID_REQUEST"
	CodeValidation        Code = "VALIDATION_ERROR"
	CodeDuplicateEmail    Code = "DUPLICATE_EMAIL"
	CodeNotFound          Code = "NOT_FOUND"
	CodeUserNotFound      Code = "USER_NOT_FOUND"
	CodePlanNotFound      Code = "PLAN_NOT_FOUND"
	CodeHoldNotFound      Code = "HOLD_NOT_FOUND"
	CodeHoldExpired       Code = "HOLD_EXPIRED"
	CodeHoldSettled       Code = "HOLD_SETTLED"
	CodeHoldReleased      Code = "HOLD_RELEASED"
	CodeTooManyHolds      Code = "TOO_MANY_HOLDS"
	CodeRateLimitExceeded Code = "RATE_LIMIT_EXCEEDED"
	CodeMethodNotAllowed  Code = "METHOD_NOT_ALLOWED"
	CodeUnavailable       Code = "UNAVAILABLE"
	CodeInternal          Code = "INTERNAL_ERROR"
)

// Error is an error that may be shown to the caller: it has no internal text.
type Error struct {
	Code    Code   // "" for a refusal by a limit or a rate
	Reason  Reason // of a refusal; "" for any other error
	Message string // a short sentence for a person, e.g. "User not found"
	Field   string // the invalid member, "" for none
	Detail  string // the reason that goes with Field, e.g. "Name is required"
}

// Error implements error.
func (e *Error) Error() string {
	if e.Field == "" {
		return fmt.Sprintf("%s: %s", e.Code, e.Message)
	}
	return fmt.Sprintf("%s: %s: %s: %s", e.Code, e.Message, e.Field, e.Detail)
}

// The errors of a [Store], which the service passes on. They may be wrapped: compare with
// [errors.Is].
var (
	ErrAccountNotFound  = &Error{Code: CodeNotFound, Message: "Account not found"}
	ErrAccountExists    = Invalid("name", "An account with this name exists already")
	ErrOwnerKeyNotFound = &Error{Code: CodeNotFound, Message: "Owner's key not found"}
	ErrOwnerKeyExists   = Invalid("key", "This owner's key belongs to another account")
	ErrOwnerKeyRevoked  = Invalid("key", "This owner's key was revoked")
	ErrUserNotFound     = &Error{Code: CodeUserNotFound, Message: "User not found"}
	ErrPlanNotFound     = &Error{Code: CodePlanNotFound, Message: "Plan not found"}
	ErrKeyNotFound      = &Error{Code: CodeAPIKeyNotFound, Message: "API key not found"}
	ErrWebhookNotFound  = &Error{Code: CodeNotFound, Message: "Webhook not found"}
	ErrEventNotFound    = &Error{Code: CodeNotFound, Message: "Event not found"}
	ErrDuplicateEmail   = &Error{Code: CodeDuplicateEmail, Message: "Email already exists",
		Field: "email", Detail: "A user with this email exists already"}
	ErrDuplicateExternalID = Invalid("external_id", "Another user of the account has this external_id")
	// ErrTooLarge means that a transaction has more changes than the store takes at once. The text of the wrapping error
	// has the numbers.
	ErrTooLarge = &Error{Code: CodeValidation, Message: "The transaction is too large for the store"}
	// ErrUnavailable means that the store cannot be reached, is not ready or is closed. No decision
	// was made; a later attempt may succeed.
	ErrUnavailable = &Error{Code: CodeUnavailable, Message: "Service unavailable"}
)

// ErrorCode returns the code of the first [Error] in err's chain, and
// [CodeInternal] for any other error.
func ErrorCode(err error) Code {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Code
	}
	return CodeInternal
}

// Unavailable wraps cause, an error of a store, as [ErrUnavailable]. The log gets the cause, the
// caller does not.
func Unavailable(cause error) error {
	return fmt.Errorf("%w: %w", ErrUnavailable, cause)
}

// Logged marks an error of a lasting state, such as a full disk. The store logs such a state when
// it begins and when it ends, so it is not logged with each request.
func Logged(err error) error {
	if IsLogged(err) {
		return err
	}
	return &loggedError{err}
}

// IsLogged reports whether err, or an error that it wraps, comes from [Logged].
func IsLogged(err error) bool {
	_, ok := errors.AsType[*loggedError](err)
	return ok
}

type loggedError struct{ error }

func (e *loggedError) Unwrap() error { return e.error }

// Invalid returns the error for a member of a resource that breaks a rule.
func Invalid(field, detail string) *Error {
	return &Error{Code: CodeValidation, Message: "Validation failed", Field: field, Detail: detail}
}

// BadRequest returns the error for a member of a validation request that breaks a rule.
func BadRequest(field, detail string) *Error {
	return &Error{Code: CodeInvalidRequest, Message: "Invalid request", Field: field, Detail: detail}
}
