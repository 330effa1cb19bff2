package badgerstore

import (
	"io"
	"os"
	"runtime"
)

// disk is the file system that the ledger is on. A test puts one in its place that
// loses, as a power cut does, what was not synced.
type disk interface {
	// names returns the names of the files in a directory.
	names(dir string) ([]string, error)
	// open opens a file to read and write, and makes it if it does not exist.
	open(path string) (file, error)
	remove(path string) error
	// syncDir brings to the disk which files a directory has.
	syncDir(dir string) error
}

// file is a file of a disk.
type file interface {
	io.ReaderAt
	io.WriterAt
	io.Closer
	Truncate(size int64) error
	// sync brings to the disk what was written, and the size.
	sync() error
	size() (int64, error)
}

// systemDisk is the file system of the system.
type systemDisk struct{}

func (systemDisk) names(dir string) ([]string, error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer func() { _ = d.Close() }()
	return d.Readdirnames(-1)
}

func (systemDisk) open(path string) (file, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	return systemFile{f}, nil
}

func (systemDisk) remove(path string) error { return os.Remove(path) }

func (systemDisk) syncDir(dir string) error {
	if runtime.GOOS == "windows" { // which keeps its directories by itself, and refuses to
		return nil
	}
	return syncPath(dir)
}

type systemFile struct{ *os.File }

func (f systemFile) sync() error { return syncData(f.File) }

func (f systemFile) size() (int64, error) {
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}

// syncPath brings a file or directory to the disk.
func syncPath(path string) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }()
	return file.Sync()
}
