package core

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// CheckRequestID returns the fault of a request id that is empty, too long, not
// UTF-8, or has control characters, as an [Error] with the code INVALID_REQUEST. An
// id is kept as it is, so that it must not be a secret either.
func CheckRequestID(id string) error {
	switch {
	case id == "" || len(id) > MaxRequestIDLength:
		return badRequest("request_id", "Request ID must be 1 to 128 bytes long")
	case !utf8.ValidString(id):
		return badRequest("request_id", "Request ID must be valid UTF-8")
	case strings.ContainsFunc(id, unicode.IsControl):
		return badRequest("request_id", "Request ID must not hold control characters")
	case MaskSecrets(id) != id:
		return badRequest("request_id", "Request ID must not be an API key")
	}
	return nil
}

// repeats makes d the first answer, which was given under the terms: what is told of
// the plan is what it was then.
func (d *Decision) repeats(first *Terms) {
	d.Repeated = true
	d.Plan = &Plan{AccountID: d.Account, ID: first.PlanID, Name: first.PlanName, Limit: first.Limit, Period: first.Period}
}
