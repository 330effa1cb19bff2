package eventlog

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// copyPiece is the number of bytes that Copy writes and syncs at once. More unsynced bytes would delay the syncs of other
// files on some file systems.
const copyPiece = 4 << 20

// Copy writes a copy of the log to an empty directory: all records that were written before the call, up to the end of a
// block. All segments but the last one are hard links, because the log never changes their records. [Open] opens the copy
// and writes only to its last segment. Without hard links Copy copies all segments. Before each segment, and
// before each piece of it, Copy calls proceed, and ends with its error. The caller makes sure that no segment is removed
// meanwhile.
func (l *Log) Copy(dir string, proceed func() error) error {
	list := l.segments.snapshot()
	for i := range list {
		g, last := &list[i], i == len(list)-1
		if err := proceed(); err != nil {
			return err
		}
		if !last {
			err := l.link(g, dir)
			if err == nil {
				continue
			}
			if noRoom(err) || errors.Is(err, fs.ErrNotExist) { // a copy would fail, too
				return err
			}
		}
		s := status{number: 1, synced: g.end, written: g.end, oldest: list[0].base, boot: l.o.Boot, sealed: !last}
		if err := l.copySegment(g, dir, s, proceed); err != nil {
			return err
		}
	}
	return nil
}

// linker is a file system with hard links.
type linker interface {
	Link(from, to string) error
}

// link makes a hard link to a segment in another directory.
func (l *Log) link(g *segment, dir string) error {
	from, ok := l.o.FS.(linker)
	if !ok {
		return errors.ErrUnsupported
	}
	return from.Link(g.path, filepath.Join(dir, g.name()))
}

// copySegment copies a segment up to its end, with a status that says that all of it is on disk.
func (l *Log) copySegment(g *segment, dir string, s status, proceed func() error) (err error) {
	file, err := l.o.FS.Open(filepath.Join(dir, g.name()), os.O_RDWR|os.O_CREATE|os.O_EXCL)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	head := make([]byte, dataOffset)
	copy(head, g.encode())
	copy(head[slotStride:], s.encode(g.seed, g.base))
	copy(head[2*slotStride:], s.encode(g.seed, g.base))
	if _, err := file.WriteAt(head, 0); err != nil {
		return err
	}
	from := int64(dataOffset)
	b := make([]byte, copyPiece)
	for end := g.offset(g.end); from < end; {
		b = b[:min(end-from, copyPiece)]
		if _, err := g.file.ReadAt(b, from); err != nil {
			return err
		}
		if _, err := file.WriteAt(b, from); err != nil {
			return err
		}
		from += int64(len(b))
		if err := errors.Join(file.Sync(), proceed()); err != nil {
			return err
		}
	}
	return nil
}
