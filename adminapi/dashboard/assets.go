package dashboard

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"io/fs"
	"net/http"
	"path"
	"strings"
	"time"
)

// The assets that are not ours are listed in assets/README.md, with their licences and the
// command that refreshes them.
//
//go:embed assets
var assetFiles embed.FS

// assets are the files of the folder, by the name under which they are served: with a part
// of their digest, so that one that has changed has another address.
var assets, assetNames = readAssets()

func readAssets() (files map[string][]byte, names map[string]string) {
	files, names = map[string][]byte{}, map[string]string{}
	list, err := fs.ReadDir(assetFiles, "assets")
	if err != nil {
		panic(err) // it is embedded
	}
	for _, f := range list {
		b, err := assetFiles.ReadFile("assets/" + f.Name())
		if err != nil {
			panic(err)
		}
		sum := sha256.Sum256(b)
		ext := path.Ext(f.Name())
		name := strings.TrimSuffix(f.Name(), ext) + "." + hex.EncodeToString(sum[:6]) + ext
		files[name], names[f.Name()] = b, Base+"assets/"+name
	}
	return files, names
}

// asset answers with a file that never changes.
func asset(w http.ResponseWriter, r *http.Request) {
	b, ok := assets[r.PathValue("name")]
	if !ok {
		http.Error(w, errNotFound.Message, http.StatusNotFound)
		return
	}
	w.Header().Set("Cache-Control", "public, max-age=31536000, immutable")
	http.ServeContent(w, r, r.PathValue("name"), time.Time{}, bytes.NewReader(b))
}
