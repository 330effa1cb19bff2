package adminapi

import (
	"encoding/csv"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/limitkeeper/limitkeeper/core/service"
)

// The media types of a streamed answer, in addition to JSON.
const (
	typeCSV    = "text/csv"
	typeNDJSON = "application/x-ndjson"
)

// streamType returns the media type that the Accept header of the request names first: that of a stream, else JSON.
func (c *call) streamType() string {
	for accepted := range strings.SplitSeq(strings.Join(c.r.Header.Values("Accept"), ","), ",") {
		name, _, _ := strings.Cut(accepted, ";")
		switch name = strings.ToLower(strings.TrimSpace(name)); name {
		case typeCSV, typeNDJSON:
			return name
		case typeJSON, "*/*", "application/*":
			return typeJSON
		}
	}
	return typeJSON
}

// The bounds of a stream.
const (
	streamBytes  = 4 << 20          // memory that a stream counts for its account, see Config.answers: at most 4 streams at once, and 32 of all accounts
	streamWithin = 30 * time.Second // how long a client may take to read 1,000 rows
)

// stream is an answer of any length, as CSV, NDJSON, or JSON with the rows in data. Its first row begins the answer.
type stream struct {
	c       *call
	kind    string
	columns []string // of CSV
	csv     *csv.Writer
	control *http.ResponseController
	begun   bool
	count   int // rows
	line    []byte
}

// stream answers with the rows that write passes to the stream by [stream.rows] and [stream.row]. An error before the first row is answered as usual.
// After the first row an error closes the connection, so that the client sees that the answer is not complete.
func (c *call) stream(kind string, columns []string, write func(*stream) error) error {
	release, err := c.config.answers.Hold(c.account, streamBytes)
	if err != nil {
		return service.ErrTooManyRequests
	}
	defer release()
	s := &stream{c: c, kind: kind, columns: columns, csv: csv.NewWriter(c.w), control: http.NewResponseController(c.w)}
	if c.r.Method != http.MethodHead {
		err = write(s)
	}
	if err == nil {
		err = s.rows(s.end)
	}
	if err != nil && s.begun {
		if !errors.Is(err, errUnread) {
			_ = c.publicError(err) // logs it
		}
		panic(http.ErrAbortHandler)
	}
	return err
}

// begin writes the header of the answer before the first row.
func (s *stream) begin() error {
	if s.begun {
		return nil
	}
	s.begun = true
	h := s.c.w.Header()
	h.Set("Content-Type", s.kind)
	h.Set("Cache-Control", "no-store")
	h.Set("Vary", "Accept")
	s.c.w.WriteHeader(http.StatusOK)
	switch s.kind {
	case typeCSV:
		return s.cells(s.columns)
	case typeJSON:
		return s.write(`{"data":[`)
	}
	return nil
}

// end writes the end of the answer. An answer without rows gets its header here.
func (s *stream) end() error {
	if err := s.begin(); err != nil || s.kind != typeJSON {
		return err
	}
	return s.write(`],"count":` + strconv.Itoa(s.count) + "}\n")
}

func (s *stream) write(text string) error {
	if _, err := io.WriteString(s.c.w, text); err != nil {
		return errUnread
	}
	return nil
}

func (s *stream) cells(list []string) error {
	if s.csv.Write(list) != nil {
		return errUnread
	}
	return nil
}

// errUnread means that the client does not read the answer.
var errUnread = errors.New("the client does not read the answer")

// rows sends the rows that write writes. The client has streamWithin to read them.
func (s *stream) rows(write func() error) error {
	_ = s.control.SetWriteDeadline(time.Now().Add(streamWithin))   // a writer of a test has no deadlines
	defer func() { _ = s.control.SetWriteDeadline(time.Time{}) }() // the next rows may take longer to be found
	if err := write(); err != nil {
		return err
	}
	if s.csv.Flush(); s.csv.Error() != nil {
		return errUnread
	}
	if err := s.control.Flush(); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return errUnread
	}
	return nil
}

// row writes a row: the object as JSON or a line of NDJSON, or the cells of CSV.
func (s *stream) row(o object, cells func() []string) (err error) {
	if err := s.begin(); err != nil {
		return err
	}
	if s.kind == typeCSV {
		return s.cells(cells())
	}
	s.line = s.line[:0]
	if s.count++; s.kind == typeJSON && s.count > 1 {
		s.line = append(s.line, ',')
	}
	if s.line, err = o.append(s.line); err != nil {
		return err
	}
	if s.kind == typeNDJSON {
		s.line = append(s.line, '\n')
	}
	if _, err := s.c.w.Write(s.line); err != nil {
		return errUnread
	}
	return nil
}

// formulaStarts are the characters at the beginning of a cell for which some spreadsheet takes the cell for a formula, or drops the character
// and looks at the next one.
const formulaStarts = "=+-@\t\r\n＝＋－＠"

// cell returns a text of a customer for CSV. A spreadsheet would run a text that begins like a formula, so such a text has a ' in front.
func cell(text string) string {
	if first, _ := utf8.DecodeRuneInString(text); text != "" && strings.ContainsRune(formulaStarts, first) {
		return "'" + text
	}
	return text
}
