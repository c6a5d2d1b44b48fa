package tests

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"
)

var pageLine = regexp.MustCompile(`status page at (http://\S+)`)

// pageOf waits for a process to say where its status page is.
func pageOf(t *testing.T, p *process) string {
	t.Helper()
	for end := time.Now().Add(patience); time.Now().Before(end) && p.running(); time.Sleep(20 * time.Millisecond) {
		if m := pageLine.FindStringSubmatch(p.errs.String()); m != nil {
			return m[1]
		}
	}
	t.Fatalf("no status page:\n%s", tail(p.errs.String()))
	return ""
}

// get reads a URL; a nil error with code 0 never happens.
func get(t *testing.T, url string) (int, string) {
	t.Helper()
	res, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, string(b)
}

// statusModel is what these tests read of /api/status.
type statusModel struct {
	Health struct {
		Live, Ready bool
		Reasons     []struct{ Code, Text string }
	}
	Warnings []struct{ Code, Text string }
	SetAside []struct{ Kind, Topic, Snippet string } `json:"set_aside"`
	Ingests  []struct {
		State string
		Stats struct {
			Published   int64
			DeadLetters int64 `json:"dead_letters"`
		}
	}
	Topics []struct {
		Name    string
		Records int64
	}
	Queries []struct {
		Name       string
		State      string
		BatchID    int64  `json:"batch_id"`
		LagOffsets *int64 `json:"lag_offsets"`
		Watermark  *time.Time
		StateKeys  int64 `json:"state_keys"`
		Totals     struct {
			Batches   int64
			InputRows int64 `json:"input_rows"`
		}
	}
	Tables []struct {
		Name          string
		Rows          int64
		Missing       bool
		MetadataBytes int64 `json:"metadata_bytes"`
	}
	DeadLetters []struct{ Reason, Topic, Snippet string } `json:"dead_letters"`
	Errors      []string
}

func modelAt(t *testing.T, url string) statusModel {
	t.Helper()
	var m statusModel
	code, text := get(t, url+"api/status")
	if err := json.Unmarshal([]byte(text), &m); err != nil || code != http.StatusOK {
		t.Fatalf("%d %v\n%s", code, err, tail(text))
	}
	return m
}

// settled waits until both queries have committed and something was set aside.
func settled(t *testing.T, p *process, url string) statusModel {
	t.Helper()
	for end := time.Now().Add(patience); time.Now().Before(end) && p.running(); time.Sleep(200 * time.Millisecond) {
		m := modelAt(t, url)
		if len(m.Queries) == 3 && m.Queries[0].Totals.Batches > 3 && m.Queries[1].Totals.Batches > 3 && m.Queries[2].Totals.InputRows > 0 && m.Health.Ready && len(m.DeadLetters) > 0 {
			return m
		}
	}
	t.Fatalf("it never came to work:\n%s", tail(p.errs.String()))
	return statusModel{}
}

func TestTheStatusPageAnswersWhileTheDemoWorks(t *testing.T) {
	data := t.TempDir()
	p := start(t, nil, "demo", "--data", data, "--rate", "2000", "--listen", "127.0.0.1:0")
	url := pageOf(t, p)
	m := settled(t, p, url)
	if !m.Health.Live || len(m.Errors) > 0 || len(m.Ingests) != 1 || m.Ingests[0].State != "running" || m.Ingests[0].Stats.Published == 0 {
		t.Errorf("%+v", m)
	}
	for _, q := range m.Queries {
		if q.State != "running" || q.LagOffsets == nil || q.Totals.InputRows == 0 {
			t.Errorf("query %+v", q)
		}
	}
	if silver := m.Queries[1]; silver.Watermark == nil || silver.StateKeys == 0 {
		t.Errorf("silver %+v", silver)
	}
	rows := map[string]int64{}
	for _, table := range m.Tables {
		rows[table.Name] = table.Rows
		if !table.Missing && table.MetadataBytes == 0 {
			t.Errorf("table %+v", table)
		}
	}
	if rows["bronze.recentchange"] == 0 || rows["silver.edits"] == 0 || len(m.Tables) < 5 {
		t.Errorf("tables %+v", m.Tables)
	}
	if d := m.DeadLetters[0]; d.Reason == "" || d.Topic != "wiki.recentchange.dlq" || d.Snippet == "" {
		t.Errorf("dead letter %+v", d)
	}
	if code, text := get(t, url+"readyz"); code != http.StatusOK {
		t.Errorf("readyz: %d %s", code, text)
	}
	if code, text := get(t, url+"livez"); code != http.StatusOK {
		t.Errorf("livez: %d %s", code, text)
	}
	code, metrics := get(t, url+"metrics")
	for _, want := range []string{`weir_query_input_rows_total{query="silver"}`, `weir_table_rows{table="silver.edits"}`, `weir_ingest_events_published_total{ingest="recentchange"}`} {
		if code != http.StatusOK || !strings.Contains(metrics, want) {
			t.Errorf("metrics: %d, without %s", code, want)
		}
	}
	if code, html := get(t, url); code != http.StatusOK || !strings.Contains(html, "All is flowing") {
		t.Errorf("the page: %d, warnings %+v", code, modelAt(t, url).Warnings)
	}
	if rows := modelAt(t, url).SetAside; len(rows) == 0 || rows[0].Snippet == "" || rows[0].Topic == "" {
		t.Errorf("samples of late and duplicate rows: %+v", rows)
	}
	p.kill9()

	// After a restart, what the tables remember is shown before the first batch
	// is, and batches go on.
	before := m.Queries[0].BatchID
	p = start(t, nil, "demo", "--data", data, "--rate", "2000", "--listen", strings.TrimSuffix(strings.TrimPrefix(url, "http://"), "/"))
	if got := pageOf(t, p); got != url {
		t.Fatalf("the page moved from %s to %s", url, got)
	}
	if m := settled(t, p, url); m.Queries[0].BatchID <= before {
		t.Errorf("batch %d after %d", m.Queries[0].BatchID, before)
	}
}

func TestAStatusPageForOthersWithoutATokenDoesNotStart(t *testing.T) {
	_, errs, code := weir(t, nil, "demo", "--data", t.TempDir(), "--events", "10", "--once", "--listen", "0.0.0.0:0")
	if code != 2 || !strings.Contains(errs, "not a loopback address") || !strings.Contains(errs, "WEIR_STATUS_TOKEN") {
		t.Errorf("exit %d:\n%s", code, tail(errs))
	}
	out, errs, code := weir(t, []string{"WEIR_STATUS_TOKEN=0123456789abcdef0123"}, "demo", "--data", t.TempDir(), "--events", "10", "--once",
		"--listen", "127.0.0.1:0", "--output", "json")
	if code != 0 || strings.Contains(out+errs, "0123456789abcdef0123") {
		t.Errorf("with a token: exit %d, or the token was printed:\n%s", code, tail(errs))
	}
}

func TestABrowserCanWatchTheDemo(t *testing.T) {
	p := start(t, nil, "demo", "--data", t.TempDir(), "--rate", "1000", "--listen", "127.0.0.1:0")
	b := chromium(t)
	url := pageOf(t, p)
	settled(t, p, url)
	b.look(1280, 900, "light")
	b.open(url)

	t.Run("it lives without a reload", func(t *testing.T) {
		b.until(`document.getElementById("live").dataset.state === "on"`)
		b.eval(nil, `globalThis.before = document.getElementById("queries").textContent; globalThis.marked = document.querySelector("#queries article")`)
		b.until(`document.getElementById("queries").textContent !== before`)
		b.until(`document.querySelector("#queries article") === marked`) // the element stays, its text changes
	})
	t.Run("the charts are drawn and read out", func(t *testing.T) {
		b.until(`[...document.querySelectorAll(".plot path.line")].filter((p) => p.getAttribute("d").includes("L")).length >= 8`)
		b.eval(nil, `document.querySelector(".plot").focus()`)
		b.key("ArrowLeft", 37)
		b.until(`/UTC.*bronze/.test(document.getElementById("chart-say").textContent)`)
		b.eval(nil, `document.querySelector(".plot").scrollIntoView({block: "center"})`)
		var box struct{ X, Y, Width, Height float64 }
		b.eval(&box, `(({x, y, width, height}) => ({x, y, width, height}))(document.querySelectorAll(".plot")[1].getBoundingClientRect())`)
		b.call(nil, "Input.dispatchMouseEvent", map[string]any{"type": "mouseMoved", "x": box.X + box.Width*0.9, "y": box.Y + box.Height/2})
		b.until(`[...document.querySelectorAll(".tip")].some((t) => !t.hidden && /bronze/.test(t.textContent))`)
		b.call(nil, "Input.dispatchMouseEvent", map[string]any{"type": "mouseMoved", "x": 1, "y": 1})
	})
	t.Run("every link and fold works", func(t *testing.T) {
		b.eval(nil, `document.querySelectorAll("nav a").forEach((a) => { a.click(); if (!document.querySelector(a.hash)) throw new Error(a.hash); })`)
		b.eval(nil, `document.querySelectorAll("summary").forEach((s) => s.click())`)
		b.until(`[...document.querySelectorAll("details")].every((d) => d.open)`)
		b.until(`document.querySelectorAll("#batches tbody tr").length > 3`)
		b.eval(nil, `document.querySelectorAll("summary").forEach((s) => s.click()); location.hash = "#advice-stalled"`)
		b.until(`document.getElementById("advice-stalled").open && document.activeElement.closest("#advice-stalled")`)
		// An open fold stays open while the page goes on.
		b.eval(nil, `globalThis.then = document.getElementById("tiles").textContent`)
		b.until(`document.getElementById("tiles").textContent !== then && document.getElementById("advice-stalled").open`)
	})
	t.Run("keyboard and screen reader find their way", func(t *testing.T) {
		b.eval(nil, `scrollTo(0, 0); document.activeElement.blur()`)
		b.open(url)
		b.key("Tab", 9)
		b.until(`document.activeElement.className === "skip" && document.activeElement.getBoundingClientRect().top >= 0`)
		b.until(`getComputedStyle(document.activeElement).outlineStyle !== "none"`)
		b.checkTree(t)
	})
	for _, size := range windows {
		for _, scheme := range []string{"light", "dark"} {
			t.Run(size.name+" "+scheme, func(t *testing.T) {
				b.look(size.width, size.height, scheme)
				b.open(url)
				b.until(`document.getElementById("live").dataset.state === "on" && document.querySelectorAll(".plot path.line").length >= 8`)
				b.checkLook(t)
				if png := b.screenshot(screenshotPath(t, fmt.Sprintf("status-%s-%s.png", size.name, scheme)), true); len(png) < 20_000 {
					t.Errorf("the picture has %d bytes", len(png))
				}
			})
		}
	}
	t.Run("nothing comes from elsewhere and nothing fails", func(t *testing.T) { b.checkQuiet(t, url) })
	t.Run("it says that the process has gone, and comes back with it", func(t *testing.T) {
		data := p.cmd.Args[3]
		p.kill9()
		b.until(`document.getElementById("live-text").textContent === "Reconnecting…"`)
		p = start(t, nil, "demo", "--data", data, "--rate", "1000", "--listen", strings.TrimSuffix(strings.TrimPrefix(url, "http://"), "/"))
		pageOf(t, p)
		b.until(`document.getElementById("live-text").textContent === "Live"`)
	})
}
