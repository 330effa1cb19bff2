package badgerstore

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"time"

	"github.com/limitkeeper/limitkeeper/storage/badgerstore/internal/diskspace"
	"github.com/limitkeeper/limitkeeper/storage/badgerstore/internal/table"
)

// ErrInUse means that another process, or another store in this process, has the directory open.
var ErrInUse = table.ErrInUse

// The directories within the directory of a store. Badger creates files with the permissions that the umask allows, so the modes of
// these directories guard all files.
const (
	eventLogDir = "eventlog"
	databaseDir = "database"
	imagesDir   = "images"
)

func eventsIn(dir string) string   { return filepath.Join(dir, eventLogDir) }
func databaseIn(dir string) string { return filepath.Join(dir, databaseDir) }
func imagesIn(dir string) string   { return filepath.Join(dir, imagesDir) }

// makeDirs creates the directories of a store if they do not exist, and takes all permissions on them from other users.
func makeDirs(dir string) error {
	for _, path := range []string{eventsIn(dir), databaseIn(dir), imagesIn(dir)} {
		if err := os.MkdirAll(path, 0o700); err != nil {
			return err
		}
		if err := os.Chmod(path, 0o700); err != nil {
			return err
		}
	}
	return nil
}

// errForeign means that a directory has files of another program where a store has its own.
var errForeign = errors.New("its directories " + databaseDir + " and " + imagesDir + " belong to another program: name another directory")

// prepareDir creates the directory of a store if it does not exist, and claims it until release is called. It checks that this process
// can write to the directory.
func prepareDir(dir string) (release func(), err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	if info, err := os.Stat(dir); err != nil || info.Mode()&fs.ModeSticky != 0 { // a directory for all users, like /tmp
		return nil, firstOf(err, fmt.Errorf("it is shared with other users: name a directory below it, such as %s", filepath.Join(dir, "limitkeeper")))
	}
	if release, err = table.Claim(dir); err != nil {
		return nil, err
	}
	if isUsed, _ := Exists(dir); isUsed && !exists(eventsIn(dir)) && logOnDisk(dir) == 0 {
		err = errForeign
	}
	if err == nil {
		err = probe(dir)
	}
	if err == nil {
		err = makeDirs(dir) // eventlog first: it shows that the others belong to a store
	}
	if err != nil {
		release()
	}
	return release, err
}

// probe returns an error when this process cannot create a file in a directory.
func probe(dir string) error {
	file, err := os.CreateTemp(dir, probePrefix)
	if err != nil {
		return err
	}
	return errors.Join(file.Close(), os.Remove(file.Name()))
}

// errLost means that a path of an open store no longer leads to the opened directory.
var errLost = errors.New("the directory was deleted or replaced: restore it, then restart this process")

// sameDir returns errLost unless the path still leads to the directory. It opens the directory, so it
// fails when descriptors have run out, too.
func sameDir(path string, identity fs.FileInfo) error {
	dir, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) || errors.Is(err, syscall.ESTALE) {
		return errLost
	}
	if err != nil {
		return err
	}
	defer func() { _ = dir.Close() }()
	info, err := dir.Stat()
	if err == nil && !os.SameFile(info, identity) {
		return errLost
	}
	return err
}

// sameDirs returns an error unless the paths of the store and of its event log still lead to the directories of the first call.
func (s *Store) sameDirs() error {
	for i, path := range []string{s.dir, eventsIn(s.dir)} {
		if i == len(s.identity) {
			info, err := os.Stat(path)
			if err != nil {
				return err
			}
			s.identity = append(s.identity, info)
		}
		if err := sameDir(path, s.identity[i]); err != nil {
			return err
		}
	}
	return nil
}

// checkDir fails the store when one of its directories is lost, or its file system has become read-only.
func (s *Store) checkDir() {
	if err := s.sameDirs(); errors.Is(err, errLost) {
		_ = s.fail(err)
	}
	if _, _, err := s.space.Space(s.dir); errors.Is(err, syscall.EROFS) {
		_ = s.fail(readOnlyError(err))
	}
}

func readOnlyError(err error) error {
	return fmt.Errorf("the file system cannot be written: %w: repair or remount it, then restart this process", err)
}

// touch fails the store when its file system can no longer be written, and returns the error. A file system that has
// met an error, like ext4 with errors=remount-ro, reports the error only to writes.
func (s *Store) touch() error {
	now := time.Now()
	if err := os.Chtimes(s.dir, now, now); errors.Is(err, syscall.EROFS) || errors.Is(err, syscall.EIO) {
		return s.fail(readOnlyError(err))
	}
	return nil
}

// ready returns an error when Badger must not be written to: without the directory, a file descriptor or disk space,
// Badger ends the process or loses tables.
func (s *Store) ready() error {
	if err := sameDir(s.dir, s.identity[0]); errors.Is(err, errLost) || noDescriptors(err) {
		return s.fail(err)
	}
	return firstOf(s.touch(), s.space.Ready())
}

// noDescriptors reports whether err means that file descriptors have run out.
func noDescriptors(err error) bool {
	return errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE)
}

// probePrefix begins the name of the file by which prepareDir finds out whether it can create files.
const probePrefix = "probe"

// hasModes reports whether the system has permission bits. Windows has access control lists.
const hasModes = runtime.GOOS != "windows"

// withAdvice adds advice to an error of the file system or to damage.
func withAdvice(dir string, err error) error {
	if isDamage(err) {
		return fmt.Errorf("%w: no data was changed; run limitkeeper check --store badger:%s", err, dir)
	}
	if diskspace.NoRoom(err) && !errors.Is(err, diskspace.ErrFull) {
		return fmt.Errorf("%w: free space on the disk", err)
	}
	var at *fs.PathError
	if !hasModes || !errors.As(err, &at) {
		return err
	}
	switch {
	case errors.Is(err, syscall.ENOTDIR):
		return fmt.Errorf("%w: name a directory", err)
	case errors.Is(err, syscall.EROFS):
		return fmt.Errorf("%w: name a directory on a writable file system", at.Err)
	case errors.Is(err, fs.ErrPermission) && at.Op == "mkdir":
		return fmt.Errorf("%w: name a directory that user %d can write to, or make it: install -d -m 700 -o %[2]d %s", at.Err, os.Geteuid(), dir)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("%w: run as its owner, or first run chown -R %d %s && chmod 700 %[3]s", at.Err, os.Geteuid(), dir)
	}
	return err
}
