package dashboard

import (
	"bytes"
	"embed"
	"fmt"
	"html/template"
	"net/http"
	"net/url"
	"path"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/dustin/go-humanize"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/signin"
)

//go:embed templates
var templateFiles embed.FS

// templates are the pages by role and name; the role is "" without a session. Each file defines "main" and uses the layout and the components. In a template,
// "may" reports whether the role has a permission. A page is parsed at its first use: all pages of all roles take about 100 ms, more than the rest of the
// start of the server or of a command.
var templates = map[core.Role]map[string]func() *template.Template{}

func init() {
	for _, role := range append(core.PersonRoles(), "") {
		templates[role] = pagesOf(role)
	}
}

// permissions are the arguments of "may".
var permissions = map[string]core.Permission{"support": core.PermitSupport, "edit": core.PermitEdit, "own": core.PermitOwn}

// pagesOf returns a function for each page, which parses the page once.
func pagesOf(role core.Role) map[string]func() *template.Template {
	may := func(word string) (bool, error) {
		p, ok := permissions[word]
		if !ok {
			return false, fmt.Errorf("there is no permission %q", word)
		}
		return role.May(p), nil
	}
	common := sync.OnceValue(func() *template.Template {
		return template.Must(template.New("").Funcs(functions).Funcs(template.FuncMap{"may": may}).ParseFS(templateFiles, "templates/layout.html", "templates/components.html"))
	})
	list, err := templateFiles.ReadDir("templates")
	if err != nil {
		panic(err) // impossible for embedded files
	}
	all := map[string]func() *template.Template{}
	for _, f := range list {
		name := strings.TrimSuffix(f.Name(), ".html")
		if name != "layout" && name != "components" {
			all[name] = sync.OnceValue(func() *template.Template {
				return template.Must(template.Must(common().Clone()).ParseFS(templateFiles, "templates/"+f.Name()))
			})
		}
	}
	return all
}

var functions = template.FuncMap{
	"asset":    func(name string) string { return assetNames[name] },
	"base":     func() string { return Base },
	"browser":  browserOf,
	"number":   humanize.Comma,
	"limit":    limit,
	"per":      per,
	"costs":    costsOf,
	"refusing": refusing,
	"when":     when,
	"day":      func(t time.Time) string { return t.UTC().Format("2 Jan 2006") },
	"stamp":    func(t time.Time) string { return t.UTC().Format(time.RFC3339) },
	"ago":      func(t time.Time) string { return ago(time.Since(t)) },
	"link":     navLink,
	"number64": func(n int) string { return humanize.Comma(int64(n)) },
}

// when formats a time in UTC.
func when(t time.Time) string { return t.UTC().Format("2 Jan 2006, 15:04:05") + " UTC" }

// plural formats a number with a noun: "1 key", "1,200 keys".
func plural(n int, noun string) string {
	if n != 1 {
		noun += "s"
	}
	return humanize.Comma(int64(n)) + " " + noun
}

// ago formats a duration before now.
func ago(d time.Duration) string {
	for _, u := range []struct {
		size time.Duration
		name string
	}{{365 * 24 * time.Hour, "year"}, {30 * 24 * time.Hour, "month"}, {24 * time.Hour, "day"}, {time.Hour, "hour"}, {time.Minute, "minute"}} {
		if d >= u.size {
			return plural(int(d/u.size), u.name) + " ago"
		}
	}
	return "just now"
}

type navigation struct {
	Href, Text string
	Current    bool
}

func navLink(l layout, page, text string) navigation {
	here := strings.TrimPrefix(l.Path, Base)
	return navigation{Base + page, text, here == page || page != "" && strings.HasPrefix(here, page+"/")}
}

type layout struct {
	Title    string
	Page     string // name of the template
	Path     string // path of the request
	SignedIn *signin.SignedIn
	SignOut  string // token of the sign-out form
	Done     string // text about the previous action, see doneTexts
	Main     any
}

// doneTexts maps the query parameter done to a text about the previous action.
var doneTexts = map[string]string{
	"password": "The password is set. Your other browsers were signed out.",
	"prefix":   "Saved. Keys that you create or regenerate from now on begin with the new prefix.",
	"created":  "Created.",
	"saved":    "Saved.",
	"deleted":  "Deleted.",
	"ended":    "The session has ended.",
	"removed":  "Removed: every session of the person has ended.",
	"revoked":  "Revoked: the next request with that key is refused.",
	"disabled": "Disabled: the next request is refused.",
	"enabled":  "Enabled again.",
	"tested":   "The receiver has accepted the test.",
	"untested": "The test has failed: the delivery log says why.",
	"adjusted": "Adjusted. The history shows the reason.",
}

// render answers with a page in the layout.
func (q *request) render(status int, name, title string, main any) error {
	l := layout{Title: title, Page: name, Path: q.r.URL.Path, SignedIn: q.signedIn, Done: doneTexts[q.r.URL.Query().Get("done")], Main: main}
	if q.signedIn != nil {
		l.SignOut = q.token()
	}
	return q.write(status, name, "layout", l)
}

// renderPart answers to a refresh with one template of a page.
func (q *request) renderPart(name, part string, main any) error {
	return q.write(http.StatusOK, name, part, main)
}

func (q *request) write(status int, name, part string, data any) error {
	var b bytes.Buffer
	role := core.Role("")
	if q.signedIn != nil {
		role = q.signedIn.Person.Role
	}
	if err := templates[role][name]().ExecuteTemplate(&b, part, data); err != nil {
		return err
	}
	answers := &q.s.strangerAnswers
	owner, _ := signin.NetworksOf(q.s.config.ClientIP(q.r))
	if q.signedIn != nil {
		answers, owner = &q.s.answers, q.account()
	}
	release, err := answers.Reserve(q.w, q.r, owner, b.Len())
	if err != nil {
		return errBusyReader
	}
	defer release()
	q.w.Header().Set("Content-Type", "text/html; charset=utf-8")
	q.w.WriteHeader(status)
	_, _ = q.w.Write(b.Bytes()) // the browser may have disconnected
	return nil
}

// unchanged answers 204 to a refresh: nothing has changed.
func (q *request) unchanged() error {
	q.w.WriteHeader(http.StatusNoContent)
	return nil
}

// live reports whether the request is an automatic refresh of a part of a page.
func (q *request) live() bool { return q.r.URL.Query().Has("part") }

// part reports whether the request refreshes the part with the name.
func (q *request) part(name string) bool { return q.r.URL.Query().Get("part") == name }

// pageSize is the number of rows on a page of a table.
const pageSize = 25

// onlyOne is the page for the total of a list.
var onlyOne = core.Page{Number: 1, Size: 1}

// listView is a page with a list.
type listView struct {
	Filters form
	Narrow  bool // a filter is set, or it is not the first page
	Rows    any
	Pager   pager
}

// pager has the links to the previous and the next page of a list.
type pager struct {
	Number     int
	First      int // number of the first row
	Rows       int
	Total      int // number of all rows, -1 if unknown
	Searched   int // number of items that a search has read, 0 if it has read the whole list
	Prev, Next string
}

func (q *request) page() core.Page {
	n, err := strconv.Atoi(q.r.URL.Query().Get("page"))
	if err != nil || n < 1 {
		n = 1
	}
	return core.Page{Number: n, Size: pageSize}
}

// query returns a query parameter without surrounding space.
func (q *request) query(name string) string { return strings.TrimSpace(q.r.URL.Query().Get(name)) }

// narrow reports whether a filter is set or the page is not the first.
func (q *request) narrow() bool { return q.with("days", "") != q.r.URL.Path }

// pager returns the pager of page p, which shows so many rows.
func (q *request) pager(p core.Page, rows, total int, more bool) pager {
	pg := pager{Number: p.Number, First: p.Offset() + 1, Rows: rows, Total: total}
	if p.Number > 1 {
		pg.Prev = q.with("page", strconv.Itoa(p.Number-1))
	}
	if more {
		pg.Next = q.with("page", strconv.Itoa(p.Number+1))
	}
	return pg
}

// listed returns the requested page of a list, and its pager.
func listed[T any](q *request, list func(core.Page) ([]T, int, error)) ([]T, pager, error) {
	p := q.page()
	items, total, err := list(p)
	return items, q.pager(p, len(items), total, p.Offset()+len(items) < total), err
}

// at adds a fragment to the links of a pager.
func (p pager) at(id string) pager {
	if p.Prev != "" {
		p.Prev += "#" + id
	}
	if p.Next != "" {
		p.Next += "#" + id
	}
	return p
}

// Last returns the number of the last row.
func (p pager) Last() int { return p.First + p.Rows - 1 }

// with returns the address of the page with one query parameter replaced, or removed if value is "".
func (q *request) with(name, value string) string {
	v := url.Values{}
	for _, keep := range []string{"q", "plan", "status", "user", "days", "action", "actor", "target", "from", "to", "page"} {
		if s := q.r.URL.Query().Get(keep); s != "" && keep != name {
			v.Set(keep, s)
		}
	}
	if value != "" {
		v.Set(name, value)
	}
	if len(v) == 0 {
		return q.r.URL.Path
	}
	return q.r.URL.Path + "?" + v.Encode()
}

// href returns the address of a page below Base. It escapes the parts.
func href(parts ...string) string {
	for i, p := range parts {
		parts[i] = url.PathEscape(p)
	}
	return Base + path.Join(parts...)
}
