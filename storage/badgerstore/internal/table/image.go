package table

import (
	"bufio"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/dgraph-io/badger/v4"
	"github.com/dgraph-io/badger/v4/pb"
	"github.com/dgraph-io/ristretto/v2/z"
	"github.com/klauspost/compress/s2"
)

// An image is a file with all records of the database as of a position of the event log. From an image and the event log
// after it, a database can be rebuilt at any time. The position is in the name of the file.
//
//	records   for each the length of its key, the key, the length of its value, the value; compressed by S2
//	log, time the state at the position, 8 bytes each; all integers of fixed length are little endian
//	checksum  CRC-32C of everything before, 4 bytes

// Records calls fn with each record in ascending order of its key. fn must not keep its arguments.
type Records func(fn func(key, value []byte) error) error

// The names of images begin with ImagePrefix, and so does that of an image that is being written.
const (
	ImagePrefix = "image-"
	imageDraft  = ImagePrefix + "draft"
)

const imageTrailer = 8 + 8 + 4

// ImagePath returns the path of the image of a position in a directory.
func ImagePath(dir string, position int64) string {
	return filepath.Join(dir, fmt.Sprintf("%s%016x", ImagePrefix, position))
}

// Images returns the positions of the images in a directory, oldest first.
func Images(dir string) (positions []int64, err error) {
	names, err := os.ReadDir(dir)
	for _, name := range names {
		digits, isImage := strings.CutPrefix(name.Name(), ImagePrefix)
		if position, err := strconv.ParseInt(digits, 16, 64); isImage && err == nil {
			positions = append(positions, position)
		}
	}
	slices.Sort(positions)
	return positions, err
}

// WriteImage writes the image of a position, verifies it, and then gives it its name. After all records it calls sync,
// which syncs the event log up to every record of the image, and returns the state.
func WriteImage(dir string, position int64, records Records, sync func() (State, error)) error {
	draft := filepath.Join(dir, imageDraft)
	err := writeImage(draft, records, sync)
	if err == nil {
		_, err = verifyImage(draft)
	}
	if err != nil {
		return cmp.Or(err, RemoveDraft(dir))
	}
	return errors.Join(os.Rename(draft, ImagePath(dir, position)), syncPath(dir))
}

func writeImage(path string, records Records, sync func() (State, error)) error {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	sum := crc32.New(castagnoli)
	out := io.MultiWriter(file, sum)
	packed := s2.NewWriter(out, s2.WriterConcurrency(1))
	var b []byte
	err = records(func(key, value []byte) error {
		b = append(binary.AppendUvarint(b[:0], uint64(len(key))), key...)
		b = append(binary.AppendUvarint(b, uint64(len(value))), value...)
		_, err := packed.Write(b)
		return err
	})
	err = cmp.Or(err, packed.Close())
	var state State
	if err == nil {
		state, err = sync()
	}
	return cmp.Or(err, binary.Write(out, binary.LittleEndian, []int64{state.Log, state.Time}),
		binary.Write(file, binary.LittleEndian, sum.Sum32()), file.Sync(), file.Close())
}

// RemoveImages removes the images whose positions match.
func RemoveImages(dir string, match func(position int64) bool) error {
	positions, err := Images(dir)
	for _, position := range positions {
		if match(position) {
			err = errors.Join(err, os.Remove(ImagePath(dir, position)))
		}
	}
	return err
}

// RemoveDraft removes the draft of an image that a killed process has left.
func RemoveDraft(dir string) error { return os.RemoveAll(filepath.Join(dir, imageDraft)) }

// ReadImage verifies an image, and returns its state and its records.
func ReadImage(dir string, position int64) (State, Records, error) {
	path := ImagePath(dir, position)
	state, err := verifyImage(path)
	if errors.Is(err, syscall.EIO) {
		err = damage(filepath.Base(path), "%v", err)
	}
	state.Position = position
	return state, func(fn func(key, value []byte) error) error { return readImage(path, fn) }, err
}

// openImage opens an image, and returns the size of the file.
func openImage(path string) (file *os.File, size int64, err error) {
	if file, err = os.Open(path); err != nil {
		return nil, 0, err
	}
	info, err := file.Stat()
	if err != nil {
		return nil, 0, errors.Join(err, file.Close())
	}
	return file, info.Size(), nil
}

// verifyImage verifies the checksum of an image, and returns its state without the position.
func verifyImage(path string) (State, error) {
	file, size, err := openImage(path)
	if err != nil {
		return State{}, err
	}
	defer func() { _ = file.Close() }()
	if size < imageTrailer {
		return State{}, damage(filepath.Base(path), "it is cut off")
	}
	sum := crc32.New(castagnoli)
	var trailer struct {
		Log, Time int64
		Sum       uint32
	}
	_, err = io.Copy(sum, io.NewSectionReader(file, 0, size-4))
	err = cmp.Or(err, binary.Read(io.NewSectionReader(file, size-imageTrailer, imageTrailer), binary.LittleEndian, &trailer))
	if err == nil && trailer.Sum != sum.Sum32() {
		err = damage(filepath.Base(path), "its checksum is wrong")
	}
	return State{Log: trailer.Log, Time: trailer.Time}, err
}

// readImage calls fn with the records of a verified image.
func readImage(path string, fn func(key, value []byte) error) error {
	file, size, err := openImage(path)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }()
	in := bufio.NewReaderSize(s2.NewReader(io.NewSectionReader(file, 0, size-imageTrailer)), 64<<10)
	var record [2][]byte // key and value
	for {
		for i := range record {
			n, err := binary.ReadUvarint(in)
			if err == io.EOF && i == 0 {
				return nil
			}
			if err != nil {
				return err
			}
			record[i] = slices.Grow(record[i][:0], int(n))[:n]
			if _, err := io.ReadFull(in, record[i]); err != nil {
				return err
			}
		}
		if err := fn(record[0], record[1]); err != nil {
			return err
		}
	}
}

// fillBuffer is the number of bytes that fill hands to Badger at once.
const fillBuffer = 1 << 20

// fill writes records to an empty database.
func (db *DB) fill(records Records) error {
	w := db.NewStreamWriter()
	defer w.Cancel()
	buf := z.NewBuffer(fillBuffer, "image")
	defer func() { _ = buf.Release() }()
	if err := w.Prepare(); err != nil {
		return err
	}
	err := records(func(key, value []byte) error {
		badger.KVToBuffer(&pb.KV{Key: key, Value: value, Version: 1, StreamId: 1}, buf)
		if buf.LenNoPadding() < fillBuffer {
			return nil
		}
		defer buf.Reset()
		return w.Write(buf)
	})
	return cmp.Or(err, w.Write(buf), w.Flush())
}
