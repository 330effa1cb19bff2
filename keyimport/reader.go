package keyimport

import (
	"bufio"
	"bytes"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/secrets"
)

// The bounds of a file.
const (
	maxColumns    = 64
	maxLineBytes  = 64 << 10             // of a row, which has several lines if a quoted field has line breaks
	maxRead       = maxLineBytes + 4<<10 // for a row: the CSV reader reads up to 4 KiB ahead
	maxQuoted     = 64                   // characters of a value in an error
	metadataStart = "metadata."
)

// defaultName is the name of a key without one.
const defaultName = "imported"

// badRow is the reason why a row cannot be imported.
type badRow struct {
	reason string
	last   bool // the rows after it cannot be read
}

func (b badRow) Error() string { return b.reason }

func bad(format string, args ...any) error { return badRow{reason: fmt.Sprintf(format, args...)} }

// badOf turns a validation error of core into a badRow, and returns other errors as they are. prefix is what the names of columns have in front
// of the names of fields.
func badOf(err error, prefix string) error {
	e, ok := errors.AsType[*core.Error](err)
	if !ok || e.Field == "" {
		return err
	}
	return bad("%s%s: %s", prefix, e.Field, e.Detail)
}

// quoted quotes a value of the file, without secrets and not too long.
func quoted(s string) string {
	s = secrets.MaskSecrets(s)
	if r := []rune(s); len(r) > maxQuoted {
		s = string(r[:maxQuoted]) + "…"
	}
	return strconv.Quote(s)
}

// row is a row of a file.
type row struct {
	line     int
	digest   secrets.Digest
	value    string // of the key; "" if only the digest is known
	planName string // or its id; "" for the plan of the user

	externalID, email, userName string
	named                       bool // the external id is the name

	used  int64
	patch core.KeyPatch

	hasDigest bool  // the row has a digest
	err       error // the row cannot be imported

	key  *core.Key  // set if the account has the key
	plan *core.Plan // of the key itself; nil for the plan of the user
	user int        // index in the user set
}

// reader reads the rows of a file.
type reader struct {
	bound   *io.LimitedReader // of the bytes that are read for one row
	csv     *csv.Reader
	columns []string
	last    int // the line in which the last row ends, at first the header
}

// newReader reads the header line.
func newReader(f io.Reader) (*reader, error) {
	in := bufio.NewReader(f)
	if start, _ := in.Peek(4); bytes.HasPrefix(start, []byte("\ufeff")) {
		_, _ = in.Discard(len("\ufeff"))
	} else if bytes.IndexByte(start, 0) >= 0 { // UTF-16
		return nil, errors.New("the file is not text in UTF-8: save the file as UTF-8")
	}
	r := &reader{bound: &io.LimitedReader{R: in, N: maxRead}}
	r.csv = csv.NewReader(r.bound)
	r.csv.FieldsPerRecord, r.csv.ReuseRecord = -1, true
	header, err := r.csv.Read()
	switch {
	case r.bound.N == 0:
		return nil, errors.New("the row is too long")
	case err == io.EOF:
		return nil, errors.New("the file is empty: want a header line with the names of the columns")
	case err != nil:
		return nil, readError(err)
	case len(header) > maxColumns:
		return nil, fmt.Errorf("%d columns: want at most %d", len(header), maxColumns)
	case len(header) == 1 && strings.ContainsAny(header[0], ";\t"):
		return nil, errors.New("the header line has no comma: want columns separated by commas, not by semicolons or tabs")
	}
	r.ended(header)
	return r, r.setColumns(header)
}

// ended notes the line in which a row ends: its last field may have line breaks.
func (r *reader) ended(fields []string) {
	last := len(fields) - 1
	line, _ := r.csv.FieldPos(last)
	r.last = line + strings.Count(fields[last], "\n")
}

// setColumns checks the names of the columns.
func (r *reader) setColumns(header []string) error {
	seen := map[string]bool{}
	var unknown []string
	for _, name := range header {
		name = strings.TrimSpace(name)
		r.columns = append(r.columns, name)
		member, isMetadata := strings.CutPrefix(name, metadataStart)
		if !slices.Contains(columns, name) && (!isMetadata || member == "" || !utf8.ValidString(member)) {
			unknown = append(unknown, quoted(name))
		}
		if seen[name] {
			return fmt.Errorf("the column %s is there twice", quoted(name))
		}
		seen[name] = true
	}
	if len(unknown) > 0 {
		return fmt.Errorf("unknown column %s: want %s and metadata.<member>", strings.Join(unknown, ", "), strings.Join(columns, ", "))
	}
	if !seen["key"] && !seen["key_sha256"] {
		return errors.New("no column key or key_sha256")
	}
	return nil
}

// columns lists the names of all columns but the metadata columns.
var columns = []string{"key", "key_sha256", "user_external_id", "user_email", "user_name", "plan", "status", "expires_at", "used", "name"}

// set sets a column of the row.
func (w *row) set(column, value string) (err error) {
	switch column {
	case "key":
		w.value = value
	case "key_sha256":
		if w.digest, w.hasDigest = secrets.ParseDigest(value); !w.hasDigest {
			return bad("key_sha256: want the 32 bytes of a SHA-256 in hexadecimal (64 digits) or base64")
		}
	case "user_external_id":
		w.externalID = value
	case "user_email":
		w.email = value
	case "user_name":
		w.userName = value
	case "plan":
		w.planName = value
	case "name":
		w.patch.Name = &value
	case "status":
		w.patch.Status = &value
	case "expires_at":
		t, err := parseTime(value)
		w.patch.ExpiresAt = core.Some(t)
		return err
	case "used":
		if w.used, err = strconv.ParseInt(value, 10, 64); err != nil || w.used < 0 || w.used > core.MaxLimit {
			return bad("used: want a whole number from 0 to %d", int64(core.MaxLimit))
		}
	}
	return nil
}

// next reads the next row. A row that cannot be imported has an err. At the end next returns io.EOF.
func (r *reader) next() (w row, err error) {
	r.bound.N = maxRead
	fields, err := r.csv.Read()
	if parse, ok := errors.AsType[*csv.ParseError](err); r.bound.N == 0 {
		return row{line: r.last + 1, err: badRow{"the row has more than 64 KiB", true}}, nil
	} else if ok {
		return row{line: parse.StartLine, err: badRow{readError(err).Error(), errors.Is(err, csv.ErrQuote)}}, nil
	}
	if err != nil {
		return row{}, err
	}
	w.line, _ = r.csv.FieldPos(0)
	r.ended(fields)
	w.err = r.fill(&w, fields)
	return w, nil
}

// readError returns an error of the CSV reader without its position.
func readError(err error) error {
	if parse, ok := errors.AsType[*csv.ParseError](err); ok {
		return fmt.Errorf("no valid CSV: %w", parse.Err)
	}
	return err
}

// fill sets the members of a row.
func (r *reader) fill(w *row, fields []string) error {
	if len(fields) != len(r.columns) {
		return bad("%d fields: want %d, as in the header line", len(fields), len(r.columns))
	}
	metadata := map[string]string{}
	for i, value := range fields {
		if value = strings.TrimSpace(value); value == "" {
			continue
		}
		name := r.columns[i]
		if !utf8.ValidString(value) {
			return bad("%s: want valid UTF-8", name)
		}
		if member, isMetadata := strings.CutPrefix(name, metadataStart); !isMetadata {
			if err := w.set(name, value); err != nil {
				return err
			}
		} else {
			metadata[member] = value
		}
	}
	if len(metadata) > 0 {
		text, err := json.Marshal(metadata)
		if err != nil {
			return err
		}
		w.patch.Metadata = core.Some(json.RawMessage(text))
	}
	if err := w.complete(); err != nil {
		return err
	}
	for i, value := range fields {
		name, text := r.columns[i], strings.TrimSpace(value)
		if name == "key" || name == "key_sha256" {
			continue
		}
		if w.value != "" && strings.Contains(text, w.value) || secrets.HasKeyCharacters(text) && secrets.DigestOf(text) == w.digest {
			return bad("%s: it holds the key of the row, and would be stored in clear", name)
		}
	}
	return nil
}

// complete sets the members that depend on several columns.
func (w *row) complete() error {
	if w.value != "" {
		d := secrets.DigestOf(w.value)
		if w.hasDigest && w.digest != d {
			return bad("key_sha256 is not the SHA-256 of key")
		}
		if err := checkValue(w.value); err != nil {
			return err
		}
		w.digest, w.hasDigest = d, true
	}
	if !w.hasDigest {
		return bad("key or key_sha256 is required")
	}
	if w.externalID == "" && w.email == "" { // a name alone identifies the user
		w.externalID, w.named = w.userName, true
	}
	w.patch.Digest = &w.digest
	if w.patch.Name == nil {
		w.patch.Name = new(defaultName)
	}
	return nil
}

// idColumn returns the column of the external id.
func (w *row) idColumn() string {
	if w.named {
		return "user_name"
	}
	return "user_external_id"
}

// parseTime reads a time as in RFC 3339, or a date, which begins at midnight in UTC.
func parseTime(text string) (t time.Time, err error) {
	for _, layout := range []string{time.RFC3339, time.DateOnly} {
		if t, err = time.Parse(layout, text); err == nil {
			return t.UTC(), nil
		}
	}
	return t, bad("expires_at: want a time such as 2027-01-31T12:00:00Z or a date")
}
