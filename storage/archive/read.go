package archive

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"maps"
	"reflect"
	"slices"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/record"
)

// Reader reads an archive. Its methods are not safe for concurrent use.
type Reader struct {
	Header Header

	r     *bufio.Reader
	sum   hash.Hash // of all lines but the trailer
	line  int64
	count Counts
}

// recordTypes has the type of each kind of record.
var recordTypes = map[Kind]reflect.Type{
	KindHeader: reflect.TypeFor[Header](), KindAccount: reflect.TypeFor[Account](), KindOwnerKey: reflect.TypeFor[core.OwnerKey](),
	KindAccess: reflect.TypeFor[Access](), KindPrices: reflect.TypeFor[Prices](), KindWebhook: reflect.TypeFor[core.Webhook](), KindWebhookEvent: reflect.TypeFor[WebhookEvent](), KindPlan: reflect.TypeFor[core.Plan](), KindUser: reflect.TypeFor[core.User](),
	KindKey: reflect.TypeFor[core.Key](), KindCounter: reflect.TypeFor[Counter](), KindDay: reflect.TypeFor[Day](),
	KindEvent: reflect.TypeFor[Event](), KindAudit: reflect.TypeFor[Audit](), KindEnd: reflect.TypeFor[Trailer](),
}

// NewReader returns a reader, and reads the header. The error is an [ErrDamaged] if the text is not an archive of this
// version.
func NewReader(r io.Reader) (*Reader, error) {
	a := &Reader{r: bufio.NewReaderSize(r, maxLine), sum: sha256.New(), count: Counts{}}
	kind, body, err := a.readLine()
	if err != nil {
		return nil, err
	}
	var version struct{ Version *int }
	if kind != KindHeader || json.Unmarshal(body, &version) != nil || version.Version == nil {
		return nil, a.damaged("this is not an archive of Limitkeeper: the first line is no %q record", KindHeader)
	}
	if *version.Version != Version {
		return nil, a.damaged("the archive has version %d, and this program reads version %d", *version.Version, Version)
	}
	if err := decode(body, &a.Header); err != nil {
		return nil, a.damaged("%w", err)
	}
	return a, nil
}

// Next returns the next record. A record that cannot be decoded has an Err, and the next record can be read. After the
// trailer Next returns [io.EOF]: the archive is complete and unchanged. Any other error is an [ErrDamaged] that names the
// line.
func (a *Reader) Next() (Record, error) {
	kind, body, err := a.readLine()
	r := Record{Kind: kind, Line: a.line}
	switch {
	case err != nil:
		return r, err
	case kind == KindEnd:
		return r, a.end(body)
	case kind == KindHeader:
		return r, a.damaged("a second %q record", KindHeader)
	case recordTypes[kind] == nil:
		return r, a.damaged("there is no kind of record %q: it may be of a newer version", kind)
	}
	a.count[kind]++
	r.Value = reflect.New(recordTypes[kind]).Interface()
	r.Err = decode(body, r.Value)
	return r, nil
}

func (a *Reader) end(body []byte) error {
	var t Trailer
	if err := decode(body, &t); err != nil {
		return a.damaged("%w", err)
	}
	if again, err := json.Marshal(t); err != nil || !bytes.Equal(again, body) { // no SHA-256 covers this line
		return a.damaged("the archive was changed: want %s, got %s", again, body)
	}
	if want := hex.EncodeToString(a.sum.Sum(nil)); t.SHA256 != want {
		return a.damaged("the archive was changed: the SHA-256 of its lines is %s, and %s in the last line", want, t.SHA256)
	}
	if !maps.Equal(t.Records, a.count) {
		return a.damaged("the archive has %v records, and %v in the last line", a.count, t.Records)
	}
	if _, err := a.r.ReadByte(); err != io.EOF {
		a.line++
		if err == nil {
			err = fmt.Errorf("text after the %q record", KindEnd)
		}
		return a.damaged("%w", err)
	}
	return io.EOF
}

// readLine reads a line, and splits it into the kind and the body of its record.
func (a *Reader) readLine() (Kind, []byte, error) {
	a.line++
	line, err := a.nextLine()
	if err != nil {
		return "", nil, err
	}
	text, ok := bytes.CutPrefix(bytes.TrimSuffix(line, []byte("\n")), []byte(`{"`))
	name, body, found := bytes.Cut(text, []byte(`":`))
	body, closed := bytes.CutSuffix(body, []byte("}"))
	if !ok || !found || !closed || !isName(name) {
		return "", nil, a.damaged(`this is no record of an archive: a line is {"<kind>":{…}}`) // the line may be a secret of another file
	}
	if Kind(name) != KindEnd {
		a.sum.Write(line)
	}
	return Kind(name), body, nil
}

// isName reports whether the text can be the kind of a record.
func isName(text []byte) bool {
	return len(text) > 0 && !slices.ContainsFunc(text, func(b byte) bool { return b != '_' && (b < 'a' || b > 'z') })
}

// nextLine returns the next line with its line feed.
func (a *Reader) nextLine() ([]byte, error) {
	line, err := a.r.ReadSlice('\n')
	switch {
	case err == nil:
		return line, nil
	case errors.Is(err, bufio.ErrBufferFull):
		return nil, a.damaged("a line of more than %d bytes", maxLine)
	case err == io.EOF || err == io.ErrUnexpectedEOF:
		return nil, a.damaged("the archive ends here: it was cut, and has no %q record", KindEnd)
	}
	return nil, a.damaged("%w", err)
}

// decode reads the body of a record. Unknown members are an error.
func decode(body []byte, rec any) error {
	d := json.NewDecoder(bytes.NewReader(body))
	d.DisallowUnknownFields()
	err := d.Decode(rec)
	if err == nil && d.InputOffset() != int64(len(body)) {
		err = errors.New("text after the record")
	}
	record.InUTC(rec)
	return err
}

// damaged returns an [ErrDamaged] that names the line.
func (a *Reader) damaged(format string, args ...any) error {
	return fmt.Errorf("%w: line %d: %w", ErrDamaged, a.line, fmt.Errorf(format, args...))
}
