package eventlog

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
)

// AsideSuffix is added to the names of segments that [Cut] sets aside. If the name is taken, "-2" or a higher number follows.
const AsideSuffix = ".damaged"

// Cut leaves of a closed log only a part of a run, see [Report], or nothing when both positions of the part are equal. The next
// record gets the position part.To, or a later one. Cut changes no segment: it renames each segment outside of the part, and
// begins a new one. It returns the new names: see [AsideSuffix]. An interrupted Cut can be repeated: until its end the
// log is damaged as before, or lacks files. Of the options it uses FS and Dir.
func Cut(o Options, part Run) (aside []string, err error) {
	o.FS = cmp.Or(o.FS, OS)
	list, err := openSegments(o, os.O_RDONLY)
	defer closeAll(list)
	if err != nil {
		return nil, err
	}
	var last *segment
	seed := seedOf(list)
	kept := slices.DeleteFunc(slices.Clone(list), func(g *segment) bool { return g.invalid != nil || g.seed != seed }) // as in load
	for _, g := range list {
		if i := slices.Index(kept, g); i >= 0 && part.From < part.To && g.base < part.To && (i+1 == len(kept) || kept[i+1].base > part.From) {
			last = g
			continue
		}
		name, err := setAside(o, g)
		if err != nil {
			return aside, err
		}
		aside = append(aside, name)
	}
	h := header{base: part.To, seed: rand.Uint32()}
	if last != nil {
		x, err := last.walk(max(last.base, part.From), part.To, nil)
		if err != nil {
			return aside, err
		}
		h.seed, h.prevBase, h.prevCRC, h.prevHours = last.seed, last.base, x.crc, x.hours
	}
	if err := o.FS.SyncDir(o.Dir); err != nil {
		return aside, err
	}
	g, err := createSegment(o, h, status{synced: part.To, oldest: part.From})
	if err == nil {
		err = g.file.Close()
	}
	return aside, err
}

// setAside renames the file of a segment to the first free name, and returns that name.
func setAside(o Options, g *segment) (name string, err error) {
	names, err := o.FS.List(o.Dir)
	if err != nil {
		return "", err
	}
	name = g.name() + AsideSuffix
	for n := 2; slices.Contains(names, name); n++ {
		name = fmt.Sprintf("%s%s-%d", g.name(), AsideSuffix, n)
	}
	return name, o.FS.Rename(g.path, filepath.Join(o.Dir, name))
}
