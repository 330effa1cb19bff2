package archive

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"time"

	"github.com/limitkeeper/limitkeeper/storage/record"
)

// Writer writes an archive. Its methods are not safe for concurrent use.
type Writer struct {
	w     io.Writer
	sum   hash.Hash
	count Counts
}

// NewWriter returns a writer, and writes the header.
func NewWriter(w io.Writer, now time.Time) (*Writer, error) {
	a := &Writer{w: w, sum: sha256.New(), count: Counts{}}
	return a, a.write(KindHeader, Header{Version, "limitkeeper", now.UTC()})
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

func (a *Writer) write(kind Kind, value any) error {
	line, err := encode(kind, value)
	if err != nil {
		return err
	}
	a.sum.Write(line)
	_, err = a.w.Write(line)
	return err
}

// encode returns the line of a record.
func encode(kind Kind, value any) ([]byte, error) {
	body, err := record.Encode(value)
	if err != nil {
		return nil, fmt.Errorf("encode a record of the kind %s: %w", kind, errors.Unwrap(err))
	}
	line := fmt.Appendf(nil, "{%q:%s}\n", kind, body)
	if len(line) > maxLine {
		return nil, fmt.Errorf("a record of the kind %s has %d bytes, more than %d", kind, len(line), maxLine)
	}
	return line, nil
}
