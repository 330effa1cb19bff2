package badgerstore

import (
	"errors"
	"os"
	"path/filepath"
)

// ErrInUse means that another process, or another store of this one, has the
// directory open.
var ErrInUse = errors.New("another process is using it")

// The files that badger writes what is committed into: its write-ahead logs and its
// value logs.
const (
	logSuffix      = ".mem"
	valueLogSuffix = ".vlog"
)

// prepareDir makes the directory, readable by nobody else, if it does not exist, and
// makes sure that it can be opened and written to.
func prepareDir(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	release, err := claim(dir)
	if err != nil {
		return err
	}
	defer release()
	probe, err := os.CreateTemp(dir, "probe")
	if err != nil {
		return err
	}
	if err := errors.Join(probe.Close(), os.Remove(probe.Name())); err != nil {
		return err
	}
	if !claims {
		return nil
	}
	return removeEmpty(dir)
}

// removeEmpty removes logs without a byte. A process that is killed between making
// a log and giving it its size, or between emptying one that is no longer needed and
// removing it, leaves such a file, and badger refuses to open a directory that has
// one.
func removeEmpty(dir string) error {
	files, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, file := range files {
		if ext := filepath.Ext(file.Name()); ext != logSuffix && ext != valueLogSuffix {
			continue
		}
		info, err := file.Info()
		if err == nil && info.Size() == 0 {
			err = os.Remove(filepath.Join(dir, file.Name()))
		}
		if err != nil {
			return err
		}
	}
	return nil
}
