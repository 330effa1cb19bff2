package archive

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"io"
	"strings"

	"github.com/klauspost/compress/zstd"
)

// Compress returns a writer that compresses as the name of a file says: gzip for .gz, zstd for .zst, and nothing else. The
// caller closes it before w.
func Compress(name string, w io.Writer) (io.WriteCloser, error) {
	switch {
	case strings.HasSuffix(name, ".gz"):
		return gzip.NewWriter(w), nil
	case strings.HasSuffix(name, ".zst"):
		return zstd.NewWriter(w, zstd.WithEncoderConcurrency(1), zstd.WithLowerEncoderMem(true))
	}
	return nopCloser{w}, nil
}

type nopCloser struct{ io.Writer }

func (nopCloser) Close() error { return nil }

// maxZstdWindow bounds the memory that decompressing a file takes, in bytes.
const maxZstdWindow = 32 << 20

// Decompress returns a reader of the text of a file that [Compress] wrote. It finds the compression by the first bytes.
func Decompress(r io.Reader) (io.ReadCloser, error) {
	b := bufio.NewReaderSize(r, 64<<10)
	first, err := b.Peek(len(zstdMagic))
	if err != nil && err != io.EOF {
		return nil, err
	}
	switch {
	case bytes.HasPrefix(first, []byte(gzipMagic)):
		return gzip.NewReader(b)
	case bytes.HasPrefix(first, []byte(zstdMagic)):
		z, err := zstd.NewReader(b, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(maxZstdWindow))
		if err != nil {
			return nil, err
		}
		return z.IOReadCloser(), nil
	}
	return io.NopCloser(b), nil
}

// The first bytes of compressed data: RFC 1952 section 2.3.1, RFC 8878 section 3.1.1.
const (
	gzipMagic = "\x1f\x8b"
	zstdMagic = "\x28\xb5\x2f\xfd"
)
