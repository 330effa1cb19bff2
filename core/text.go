package core

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/mail"
	"strings"
	"unicode"
	"unicode/utf8"
	"unique"

	"github.com/go-json-experiment/json/jsontext"
	"golang.org/x/text/unicode/norm"

	"github.com/limitkeeper/limitkeeper/core/secrets"
)

// CleanName trims a name and checks that it has 1 to 255 characters and no control character: names
// appear in header fields, logs and terminals.
func CleanName(field, name string) (string, error) {
	name = strings.TrimSpace(name)
	switch n := utf8.RuneCountInString(name); {
	case n == 0:
		return "", Invalid(field, fieldLabel(field)+" is required")
	case n > maxNameLength:
		return "", Invalid(field, fieldLabel(field)+" must be at most 255 characters long")
	case !utf8.ValidString(name):
		return "", Invalid(field, fieldLabel(field)+" must be valid UTF-8")
	case strings.ContainsFunc(name, unicode.IsControl):
		return "", Invalid(field, fieldLabel(field)+" must not hold control characters")
	}
	return name, nil
}

// checkEmail checks that an address is an addr-spec of RFC 5322, without a display name. nil, no
// address, is valid.
func checkEmail(email *string) error {
	if email == nil {
		return nil
	}
	if len(*email) > maxEmailLength {
		return Invalid("email", "Invalid email format")
	}
	a, err := mail.ParseAddress(*email)
	if err != nil || a.Address != *email {
		return Invalid("email", "Invalid email format")
	}
	if !norm.NFKC.IsNormalString(*email) || strings.ContainsFunc(*email, isInvisible) {
		return Invalid("email", "Email must be in its plain form, without invisible, full-width or other compatibility characters: two addresses that look the same would be two users")
	}
	return nil
}

// isInvisible reports whether a character takes no room: controls, and format characters such as a zero-width space.
func isInvisible(r rune) bool { return unicode.In(r, unicode.C, unicode.Variation_Selector) }

// ErrSecretExternalID means that an external id is the value of a key. It would be stored in clear.
var ErrSecretExternalID = Invalid("external_id", "External id must not be an API key")

// cleanExternalID trims an external id and checks it by the rules of names. It must not be a secret: external ids are
// stored and shown unmasked. nil, no external id, is valid.
func cleanExternalID(id *string) (string, error) {
	switch {
	case id == nil:
		return "", nil
	case strings.TrimSpace(*id) == "":
		return "", Invalid("external_id", "External id must not be empty")
	case secrets.HoldsSecret(*id):
		return "", ErrSecretExternalID
	case strings.ContainsFunc(strings.TrimSpace(*id), isInvisible):
		return "", Invalid("external_id", "External id must not hold control characters or invisible characters")
	}
	return CleanName("external_id", *id)
}

// cleanMetadata checks that metadata is a JSON object of at most 4 KiB that every reader reads alike, and compacts it.
func cleanMetadata(m *json.RawMessage) (json.RawMessage, error) {
	if m == nil {
		return nil, nil
	}
	var buf bytes.Buffer
	if err := json.Compact(&buf, *m); err != nil {
		return nil, Invalid("metadata", "Metadata must be JSON: "+err.Error())
	}
	if !strings.HasPrefix(buf.String(), "{") {
		return nil, Invalid("metadata", "Metadata must be an object")
	}
	if buf.Len() > maxMetadata {
		return nil, Invalid("metadata", "Metadata must be at most 4 KiB")
	}
	dec := jsontext.NewDecoder(bytes.NewReader(buf.Bytes()))
	for {
		switch _, err := dec.ReadToken(); {
		case err == io.EOF:
			return buf.Bytes(), nil
		case err != nil:
			return nil, Invalid("metadata", "Metadata must not have a member twice, half a surrogate pair or invalid UTF-8")
		case dec.StackDepth() > maxMetadataDepth:
			return nil, Invalid("metadata", fmt.Sprintf("Metadata must nest at most %d objects and arrays", maxMetadataDepth))
		}
	}
}

// maxMetadataDepth is the deepest nesting of metadata.
const maxMetadataDepth = 31

// fieldLabel turns the name of a member into the start of a sentence: plan_id becomes "Plan id".
func fieldLabel(field string) string {
	s := strings.ReplaceAll(field, "_", " ")
	if s == "url" {
		return "URL"
	}
	return strings.ToUpper(s[:1]) + s[1:]
}

// Intern returns s in the memory that all equal strings share: many keys have the same account,
// plan and status.
func Intern[S ~string](s S) S { return unique.Make(s).Value() }
