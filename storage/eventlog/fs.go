package eventlog

import (
	"errors"
	"io"
	"os"
	"runtime"
)

// FS is the file system that the log is on. Tests inject faults through it.
type FS interface {
	// List returns the names of the files in a directory, none when the directory does not exist.
	List(dir string) ([]string, error)
	// Open opens a file with the flags of package os.
	Open(path string, flags int) (File, error)
	Rename(from, to string) error
	Remove(path string) error
	// SyncDir makes the names in a directory durable.
	SyncDir(dir string) error
}

// File is an open file of an [FS].
type File interface {
	io.ReaderAt
	io.WriterAt
	io.Closer
	Truncate(size int64) error
	// Sync makes the content and the size durable.
	Sync() error
	Size() (int64, error)
}

// OS is the file system of the operating system.
var OS FS = osFS{}

type osFS struct{}

func (osFS) List(dir string) (names []string, err error) {
	entries, err := os.ReadDir(dir)
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	return names, err
}

func (osFS) Open(path string, flags int) (File, error) {
	f, err := os.OpenFile(path, flags, 0o600)
	if err != nil {
		return nil, err
	}
	return osFile{f}, nil
}

func (osFS) Rename(from, to string) error { return os.Rename(from, to) }

func (osFS) Remove(path string) error { return os.Remove(path) }

func (osFS) SyncDir(dir string) error {
	if runtime.GOOS == "windows" { // directories cannot be synced there, and need no sync
		return nil
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer func() { _ = d.Close() }()
	return d.Sync()
}

type osFile struct{ *os.File }

func (f osFile) Sync() error { return syncData(f.File) }

func (f osFile) Size() (int64, error) {
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}
