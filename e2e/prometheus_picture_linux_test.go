package e2e

import (
	"fmt"
	"html/template"
	"math"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// drawing is a panel of the dashboard with its data. It is drawn by this test, and not by Grafana.
type drawing struct {
	Title, Unit, Max string
	Lines            []line
}

type line struct {
	Name, Color, Points string
}

// The size of a drawing, in units of its SVG.
const (
	drawingWidth  = 400.0
	drawingHeight = 120.0
)

var colors = []string{"#73bf69", "#f2cc0c", "#5794f2", "#ff9830", "#f2495c", "#b877d9", "#37872d", "#8ab8ff"}

// draw returns the panels of the dashboard with their results of the last d.
func (p *prometheus) draw(t *testing.T, d time.Duration) (drawings []drawing) {
	t.Helper()
	now := time.Now()
	for _, panel := range dashboardPanels(t) {
		if panel.Type == "row" {
			continue
		}
		out := drawing{Title: panel.Title, Unit: panel.FieldConfig.Defaults.Unit}
		top := 0.0
		var all [][][2]float64
		for _, target := range panel.Targets {
			var result struct {
				Result []struct {
					Metric map[string]string
					Values [][2]any
				}
			}
			path := fmt.Sprintf("query_range?query=%s&start=%d&end=%d&step=0.5", url.QueryEscape(variables.Replace(target.Expr)), now.Add(-d).Unix(), now.Unix())
			if err := p.get(path, &result); err != nil {
				t.Fatal(err)
			}
			for _, r := range result.Result {
				name := target.LegendFormat
				for label, v := range r.Metric {
					name = strings.ReplaceAll(name, "{{"+label+"}}", v)
				}
				var points [][2]float64
				for _, v := range r.Values {
					at, _ := v[0].(float64)
					text, _ := v[1].(string)
					if n, err := strconv.ParseFloat(text, 64); err == nil && !math.IsNaN(n) && !math.IsInf(n, 0) {
						points = append(points, [2]float64{at - float64(now.Add(-d).Unix()), n})
						top = max(top, n)
					}
				}
				all = append(all, points)
				out.Lines = append(out.Lines, line{Name: name, Color: colors[len(out.Lines)%len(colors)]})
			}
		}
		for i, points := range all {
			var b strings.Builder
			for _, v := range points {
				fmt.Fprintf(&b, "%.1f,%.1f ", v[0]/d.Seconds()*drawingWidth, drawingHeight*(1-v[1]/max(top, 1e-12)))
			}
			out.Lines[i].Points = b.String()
		}
		out.Max = strconv.FormatFloat(top, 'g', 3, 64)
		drawings = append(drawings, out)
	}
	return drawings
}

var picture = template.Must(template.New("").Parse(`<!DOCTYPE html><meta charset="utf-8">
<style>body{background:#181b1f;color:#ccccdc;font:12px sans-serif;margin:12px}main{display:grid;grid-template-columns:repeat(4,1fr);gap:10px}
section{background:#22252b;padding:8px;border-radius:4px}h2{font-size:12px;margin:0 0 4px}svg{width:100%;background:#1b1e23}p{margin:2px 0;font-size:10px;line-height:1.3}</style>
<h1>The queries of deploy/grafana/dashboard.json, drawn by a test and not by Grafana</h1><main>
{{range .}}<section><h2>{{.Title}}</h2><p>0 to {{.Max}} {{.Unit}}</p>
<svg viewBox="0 -2 400 124" preserveAspectRatio="none">{{range .Lines}}<polyline points="{{.Points}}" fill="none" stroke="{{.Color}}" stroke-width="1.5"/>{{end}}</svg>
<p>{{range .Lines}}<span style="color:{{.Color}}">{{.Name}}</span> {{end}}</p></section>
{{end}}</main>`))

// takePicture writes a picture of the panels to the folder that LIMITKEEPER_SCREENSHOTS names.
func (p *prometheus) takePicture(t *testing.T, d time.Duration) {
	t.Helper()
	folder := os.Getenv("LIMITKEEPER_SCREENSHOTS")
	if folder == "" {
		return
	}
	page := filepath.Join(t.TempDir(), "page.html")
	f, err := os.Create(page)
	if err != nil {
		t.Fatal(err)
	}
	if err := picture.Execute(f, p.draw(t, d)); err != nil {
		t.Fatal(err)
	}
	f.Close()
	out, err := exec.Command("chromium", "--headless", "--no-sandbox", "--hide-scrollbars", "--disable-dev-shm-usage",
		"--window-size=1600,1560", "--screenshot="+filepath.Join(folder, "prometheus.png"), "file://"+page).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}
