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
	line  bytes.Buffer
	json  *json.Encoder // to line; it keeps metadata byte for byte
	count Counts
}

// NewWriter returns a writer, and writes the header.
func NewWriter(w io.Writer, source string, now time.Time) (*Writer, error) {
	a := newWriter(w)
	return a, a.write(KindHeader, Header{Version, source, now.UTC()})
}

func newWriter(w io.Writer) *Writer {
	a := &Writer{w: w, sum: sha256.New(), count: Counts{}}
	a.json = json.NewEncoder(&a.line)
	a.json.SetEscapeHTML(false)
	return a
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

// write writes a line.
func (a *Writer) write(kind Kind, record any) error {
	a.line.Reset()
	fmt.Fprintf(&a.line, "{%q:", kind)
	if err := a.json.Encode(record); err != nil {
		return fmt.Errorf("encode a record of the kind %s: %w", kind, err)
	}
	a.line.Truncate(a.line.Len() - 1) // the line feed of Encode
	a.line.WriteString("}\n")
	if a.line.Len() > maxLine {
		return fmt.Errorf("a record of the kind %s has %d bytes, more than %d", kind, a.line.Len(), maxLine)
	}
	a.sum.Write(a.line.Bytes())
	_, err := a.w.Write(a.line.Bytes())
	return err
}
