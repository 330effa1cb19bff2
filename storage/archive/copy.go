package archive

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// kindError is the kind of the last line of an archive whose writer failed.
const kindError Kind = "error"

// WriteError ends an archive that cannot be finished with the reason. [Copy] returns the reason.
func WriteError(w io.Writer, reason error) error {
	text, err := json.Marshal(reason.Error())
	if err == nil {
		_, err = fmt.Fprintf(w, "{%q:%s}\n", kindError, text)
	}
	return err
}

// Copy copies an archive, and checks that it is complete and unchanged. It does not check the records. progress gets the
// number of records so far. An archive that ends with an error is that error.
func Copy(w io.Writer, r io.Reader, progress func(records int64)) (Counts, error) {
	a, err := NewReader(io.TeeReader(r, w))
	for records := int64(1); err == nil; records++ {
		var kind Kind
		var body []byte
		if kind, body, err = a.readLine(); err != nil {
			break
		}
		switch kind {
		case KindEnd:
			if err = a.end(body); err == io.EOF {
				return a.count, nil
			}
		case kindError:
			var text string
			if err = json.Unmarshal(body, &text); err == nil {
				err = errors.New(text)
			}
		default:
			a.count[kind]++
			progress(records)
		}
	}
	return nil, err
}
