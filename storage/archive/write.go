package archive

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"hash"
	"io"
	"time"
)

// Writer writes an archive. Its methods are not safe for concurrent use.
type Writer struct {
	w     io.Writer
	sum   hash.Hash
	lines *encoder
	count Counts
}

// NewWriter returns a writer, and writes the header.
func NewWriter(w io.Writer, source string, now time.Time) (*Writer, error) {
	a := &Writer{w: w, sum: sha256.New(), lines: newEncoder(), count: Counts{}}
	return a, a.write(KindHeader, Header{Version, source, now.UTC()})
}

// Put implements [Sink].
func (a *Writer) Put(_ context.Context, r Record) error {
	if err := a.write(r.Kind, r.Value); err != nil {
		return err
	}
	a.count[r.Kind]++
	return nil
}

// Close writes the trailer. It does not close the underlying writer.
func (a *Writer) Close() error {
	return a.write(KindEnd, Trailer{a.count, hex.EncodeToString(a.sum.Sum(nil))})
}

func (a *Writer) write(kind Kind, record any) error {
	line, err := a.lines.encode(kind, record)
	if err != nil {
		return err
	}
	a.sum.Write(line)
	_, err = a.w.Write(line)
	return err
}

// encoder encodes records as lines.
type encoder struct {
	line bytes.Buffer
	json *json.Encoder // to line; it keeps metadata byte for byte
}

func newEncoder() *encoder {
	e := new(encoder)
	e.json = json.NewEncoder(&e.line)
	e.json.SetEscapeHTML(false)
	return e
}

// encode returns the line of a record. The line is valid until the next call.
func (e *encoder) encode(kind Kind, record any) ([]byte, error) {
	e.line.Reset()
	fmt.Fprintf(&e.line, "{%q:", kind)
	if err := e.json.Encode(record); err != nil {
		return nil, fmt.Errorf("encode a record of the kind %s: %w", kind, err)
	}
	e.line.Truncate(e.line.Len() - 1) // the line feed of Encode
	e.line.WriteString("}\n")
	if e.line.Len() > maxLine {
		return nil, fmt.Errorf("a record of the kind %s has %d bytes, more than %d", kind, e.line.Len(), maxLine)
	}
	return e.line.Bytes(), nil
}
